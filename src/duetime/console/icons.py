"""The icons of the console, drawn on a grid of 16 with a line of 1.5; the style sheet gives them their colour."""

from markupsafe import Markup

PATHS = {
    "overview": '<path d="M2.5 8.5 8 3l5.5 5.5M4 7.5V13h8V7.5"/>',
    "queues": '<path d="M2.5 4h11M2.5 8h11M2.5 12h7"/>',
    "jobs": '<rect x="2.5" y="2.5" width="11" height="11" rx="2"/><path d="M5.5 8.2 7.3 10l3.2-4"/>',
    "failures": '<path d="M8 2.5 14 13H2zM8 6.5V9M8 11v.2"/>',
    "batches": '<path d="M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3"/>',
    "schedules": '<rect x="2.5" y="3.5" width="11" height="10" rx="1.5"/><path d="M5.5 2v3M10.5 2v3M2.5 6.8h11"/>',
    "topics": '<path d="M2.5 8.5 13.5 3 10 13.5 7.6 9.4zM7.6 9.4 13.5 3"/>',
    "workers": '<rect x="4" y="4" width="8" height="8" rx="1.5"/>'
    '<path d="M6.5 2v2M9.5 2v2M6.5 12v2M9.5 12v2M2 6.5h2M2 9.5h2M12 6.5h2M12 9.5h2"/>',
    "stores": '<ellipse cx="8" cy="4" rx="5.2" ry="1.9"/>'
    '<path d="M2.8 4v8c0 1 2.3 1.9 5.2 1.9s5.2-.9 5.2-1.9V4M2.8 8c0 1 2.3 1.9 5.2 1.9S13.2 9 13.2 8"/>',
    "alerts": '<path d="M4 7a4 4 0 0 1 8 0c0 3.5 1.5 4.5 1.5 4.5h-11S4 10.5 4 7zM6.7 14h2.6"/>',
    "pipeline": '<circle cx="3.7" cy="8" r="1.7"/><circle cx="12.3" cy="4" r="1.7"/>'
    '<circle cx="12.3" cy="12" r="1.7"/><path d="M5.3 7.3 10.7 4.7M5.3 8.7l5.4 2.6"/>',
    "access": '<circle cx="5.5" cy="10.5" r="3"/><path d="M7.7 8.3 13.5 2.5M11 5l2 2"/>',
    "audit": '<path d="M4 2.5h6L13 5.5v8H4zM9.5 2.5v3.5H13M6 8.5h5M6 11h5"/>',
    "search": '<circle cx="7" cy="7" r="4.5"/><path d="m10.5 10.5 3 3"/>',
    "user": '<circle cx="8" cy="5.5" r="2.7"/><path d="M3 13.5c.6-2.6 2.6-3.8 5-3.8s4.4 1.2 5 3.8"/>',
    "sun": '<circle cx="8" cy="8" r="2.8"/>'
    '<path d="M8 1.5V3M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1"/>',
    "moon": '<path d="M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5z"/>',
    "auto": '<circle cx="8" cy="8" r="5.5"/><path d="M8 2.5v11A5.5 5.5 0 0 0 8 2.5z" fill="currentColor"/>',
    "copy": '<rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M10.5 5.5v-3h-8v8h3"/>',
    "more": '<path d="M3.5 8h.01M8 8h.01M12.5 8h.01" stroke-width="2.2"/>',
    "pause": '<path d="M5.5 3.5v9M10.5 3.5v9"/>',
    "play": '<path d="M5 3.5v9l7-4.5z"/>',
    "menu": '<path d="M2.5 4.5h11M2.5 8h11M2.5 11.5h11"/>',
    "down": '<path d="m4.5 6.5 3.5 3.5 3.5-3.5"/>',
    "ok": '<path d="m3.5 8.5 3 3 6-7"/>',
    "plus": '<path d="M8 3v10M3 8h10"/>',
    "retry": '<path d="M13 8a5 5 0 1 1-1.5-3.5M13 2.5v2.6h-2.6"/>',
    "clock": '<circle cx="8" cy="8" r="5.5"/><path d="M8 5v3l2 1.5"/>',
    "link": '<path d="M6.5 3.5h-3v9h9v-3M9 2.5h4.5V7M13.5 2.5 7.5 8.5"/>',
}


def icon(name: str) -> Markup:
    shapes = Markup(PATHS[name])
    return Markup('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">{}</svg>').format(shapes)
