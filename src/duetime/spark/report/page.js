"use strict";
// Draws every chart of the page in the colours of the theme; a colour in a figure is the name of a CSS variable.
(() => {
  const root = document.documentElement;
  const wish = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function paint(value) {
    if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(paint);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, paint(one)]));
    }
    return value;
  }

  function axis(own) {
    return {
      gridcolor: "--grid", linecolor: "--line", zerolinecolor: "--line", tickcolor: "--line", tickfont: { color: "--soft" },
      automargin: true, fixedrange: true, ...own,
    };
  }

  function layout(own) {
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, hovermode: "x unified", dragmode: false,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "--ink" },
      margin: { l: 8, r: 8, t: 8, b: 8 }, legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { color: "--soft" } },
      hoverlabel: { bgcolor: "--card", bordercolor: "--line", font: { color: "--ink" } }, bargap: 0.25,
    };
    const whole = { ...base, ...own };
    for (const name of Object.keys(whole)) if (/^[xy]axis\d*$/.test(name)) whole[name] = axis(whole[name]);
    return paint(whole);
  }

  function draw() {
    const theme = chosen ?? (wish.matches ? "dark" : "light");
    root.dataset.theme = theme;
    for (const place of document.querySelectorAll(".chart")) {
      const figure = JSON.parse(place.nextElementSibling.textContent);
      Plotly.react(place, paint(figure.data), layout(figure.layout), { responsive: true, displayModeBar: false, displaylogo: false });
    }
  }

  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    draw();
  });
  wish.addEventListener("change", draw);
  let before = null;
  addEventListener("beforeprint", () => { before = chosen; chosen = "light"; draw(); });
  addEventListener("afterprint", () => { chosen = before; draw(); });
  const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
  if (asked === "dark" || asked === "light") chosen = asked;
  draw();
  root.dataset.drawn = "yes";
})();
