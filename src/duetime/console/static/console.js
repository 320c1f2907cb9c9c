// Everything works without this file, apart from live pages and charts, copying, keys, and questions before a deletion.
"use strict";

const charts = new Map();
const root = document.body.dataset.root;
const $ = (id) => document.getElementById(id);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const here = Intl.DateTimeFormat().resolvedOptions().timeZone; // the server learns of it with the second page
const zoned = (at) => uPlot.tzDate(new Date(at * 1000), (document.body.dataset.times === "utc" ? "" : here) || "Etc/UTC");
const clock = (at, form) => uPlot.fmtDate(form)(zoned(at));

// The lateness chart has a logarithmic axis of milliseconds; its values are shown as people say them.
const units = JSON.parse(document.body.dataset.units);
const STEPS = [1, 10, 100, 1e3, 1e4, 6e4, 6e5, 36e5, 36e6, 864e5, 864e6];
function spoken(ms) {
  if (ms == null) return "–";
  const [unit, size] = [["d", 864e5], ["h", 36e5], ["m", 6e4], ["s", 1e3], ["ms", 1]].find(([, one]) => ms >= one) || ["ms", 1];
  return units[unit].replace("{}", +(ms / size).toFixed(ms < size * 10 ? 1 : 0));
}

function draw(element) {
  if (!window.uPlot || !element.dataset.chart) return;
  const { labels, rows, colors, span, kind, now, days, dashed, whole, top } = JSON.parse(element.dataset.chart);
  const data = ["", ...labels].map((_, place) => rows.map((row) => row[place]));
  const known = charts.get(element.id);
  if (known && known.root.isConnected && known.labels === labels.join()) {
    [known.range, known.cap] = [[now - span, now], top];
    return known.setData(data);
  }
  const value = (_, raw) => (raw == null ? "" : kind ? spoken(raw) : raw.toLocaleString(document.documentElement.lang));
  const axis = { stroke: color("--faint"), font: `11px ${color("--sans")}`, grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  element.replaceChildren();
  const chart = new uPlot(
    {
      width: element.clientWidth,
      height: 190,
      padding: [8, 20, 0, 0],
      cursor: { y: false },
      tzDate: zoned,
      scales: {
        // The axis always spans the time that was chosen, with a gap where nothing is known.
        x: { range: (plot) => plot.range || [now - span, now] },
        y: kind
          ? { distr: 3, range: (_, low, high) => [1, STEPS.find((one) => one > Math.max(high || 0, 99)) || high] }
          : { range: (plot, low, high) => [0, (plot.cap ?? top) || Math.max((high || 0) * 1.08, 1)] },
      },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((at) => clock(at, days ? "{MM}-{DD}" : "{HH}:{mm}")), space: 70, size: 28 },
        { ...axis, size: 52, ...(kind ? { splits: (plot) => STEPS.filter((one) => one <= plot.scales.y.max), filter: (_, splits) => splits } : whole ? { incrs: [..."01234567"].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power)) } : {}), values: (_, ticks) => ticks.map((one) => (one == null ? "" : kind ? spoken(one) : one.toLocaleString())) },
      ],
      series: [
        { label: " ", value: (_, at) => (at == null ? "" : clock(at, "{MM}-{DD} {HH}:{mm}:{ss}")) },
        ...labels.map((label, place) => ({ label, value, stroke: color(colors[place]), width: 1.5, dash: place === dashed ? [5, 5] : [], points: { show: data[0].length < 3 } })),
      ],
    },
    data,
    element,
  );
  chart.labels = labels.join();
  charts.set(element.id, chart);
}

// Why the page may be old: the server or a store does not answer. Nothing here means that it is live.
const troubles = new Map();
function say(who, text) {
  troubles.delete(who);
  if (text) troubles.set(who, text);
  const [why] = troubles.values();
  const state = $("live-state");
  state.textContent = why ? state.dataset.off : state.dataset.on;
  state.classList.toggle("on", !why);
  $("lost").hidden = !why;
  $("lost").textContent = why || "";
}
document.addEventListener("htmx:sseOpen", (event) => {
  say("server", "");
  say("store", "");
  event.detail.source.addEventListener("away", ({ data }) => {
    const pools = JSON.parse(data);
    say("store", pools.length ? $("lost").dataset.store.replace("{pools}", pools.join(", ")) : "");
  });
});
for (const name of ["htmx:sseError", "htmx:sseClose", "htmx:sendError"]) document.addEventListener(name, () => say("server", $("lost").dataset.server));
// A refresh brings the lines that have changed, and names stretches of those that are here.
let lines = [];
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (detail.target.id !== "live") return;
  const sent = detail.xhr.getResponseHeader("x-changes") ? JSON.parse(detail.serverResponse) : detail.serverResponse.split("\n");
  lines = sent.flatMap((one) => (typeof one === "string" ? one : lines.slice(...one)));
  detail.serverResponse = lines.join("\n");
});
const refresh = () => [document.querySelectorAll(".chart").forEach(draw), count()];
document.addEventListener("htmx:afterSwap", refresh);
// A tab that nobody looks at asks for nothing, and catches up when it is shown again.
document.addEventListener("htmx:beforeRequest", (event) => {
  const busy = document.querySelector("#live .drop[open], #live input:focus, #live input:checked, #live .actions:hover, #live .drop:hover");
  if (event.detail.elt.id === "live" && (document.hidden || busy)) event.preventDefault();
});
document.addEventListener("visibilitychange", () => !document.hidden && $("live") && window.htmx && htmx.trigger("#live", "sse:tick"));

window.addEventListener("resize", () => charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: 190 })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [charts.clear(), refresh()]);

// A question that names what will happen, before a form is sent.
document.addEventListener("submit", (event) => {
  const form = event.target;
  const asked = event.submitter && event.submitter.dataset.ask ? event.submitter : form;
  if (!asked.dataset.ask || form.dataset.sure) return;
  event.preventDefault();
  const dialog = $("ask");
  const yes = dialog.querySelector("button[value=yes]");
  dialog.querySelector("h2").textContent = asked.dataset.ask;
  dialog.querySelector("p").textContent = asked.dataset.detail;
  yes.textContent = asked.dataset.button || (event.submitter ? event.submitter.textContent : "OK");
  yes.className = "danger" in asked.dataset ? "solid-bad" : "primary";
  dialog.onclose = () => {
    if (dialog.returnValue !== "yes") return;
    form.dataset.sure = "1";
    form.requestSubmit(event.submitter);
    delete form.dataset.sure;
  };
  dialog.returnValue = "";
  dialog.showModal();
});

// How many rows are ticked, in the bar that acts on them.
function count() {
  document.querySelectorAll("[data-selected]").forEach((bar) => {
    const ticked = document.querySelectorAll(`input[name="${bar.dataset.selected}"]:checked`).length;
    bar.hidden = !ticked;
    bar.querySelectorAll("[data-text]").forEach((text) => (text.textContent = text.dataset.text.replace("{count}", ticked)));
  });
}
document.addEventListener("change", (event) => {
  const all = event.target.dataset && event.target.dataset.all;
  if (all) document.querySelectorAll(`input[name="${all}"]`).forEach((box) => (box.checked = event.target.checked));
  if (event.target.type === "checkbox") count();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  document.querySelectorAll(".drop[open]").forEach((one) => one.contains(event.target) || one.classList.contains("burger") || one.removeAttribute("open"));
  if (!button) return;
  const { copy, fill, pick } = button.dataset;
  if (copy) {
    await navigator.clipboard.writeText($(copy).textContent);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  }
  if (fill) put($(fill), button.dataset.text);
  if (pick) {
    const picker = Object.assign(document.createElement("input"), { type: "datetime-local", className: "picker", ariaLabel: button.ariaLabel });
    picker.onchange = () => put($(pick), picker.value.replace("T", " "));
    $(pick).after(picker);
    button.remove();
    picker.showPicker();
  }
});
function put(field, text) {
  field.value = text;
  for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll(".drop[open]").forEach((one) => one.removeAttribute("open"));
  const typing = event.target.matches("input, textarea, select, [contenteditable]");
  const find = $("find");
  if (find && ((event.key === "/" && !typing) || (event.key === "k" && (event.ctrlKey || event.metaKey)))) {
    event.preventDefault();
    find.focus();
    return find.select();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const pages = { o: "/", q: "/queues", j: "/jobs", f: "/failures", t: "/topics", w: "/workers", b: "/batches", s: "/schedules" };
  if (before === "g" && pages[event.key]) location.href = root + pages[event.key];
  if (event.key === "?" && $("keys")) $("keys").showModal();
  if (event.key === "p") document.querySelector(`button[name=rate][value="${document.querySelector("main[sse-connect]") ? 0 : 1}"]`)?.click();
  before = event.key === "g" ? "g" : "";
});

document.cookie = `duetime_zone=${encodeURIComponent(here || "")}; path=${root}; max-age=31536000; samesite=lax`;
document.querySelectorAll("[data-copy][hidden], [data-pick][hidden]").forEach((button) => (button.hidden = false));
// The chart of a page that is refreshed stays; only its numbers come from the new page.
if (window.Idiomorph) {
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node, fresh) => {
    if (!node.classList?.contains("chart") || !fresh.dataset?.chart || !window.uPlot) return true;
    node.dataset.chart = fresh.dataset.chart;
    draw(node);
    return false;
  };
  // What somebody has unfolded stays so, and so do buttons that only work with this file.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS") && !(name === "hidden" && node.dataset && (node.dataset.copy || node.dataset.pick || node.dataset.selected));
}
// A link to a folded part of a page unfolds it.
$(location.hash.slice(1))?.querySelector(":scope > details")?.setAttribute("open", "");
setTimeout(() => document.querySelector(".toast:not(.problem, :hover, :focus-within)")?.remove(), 12000);
refresh();
