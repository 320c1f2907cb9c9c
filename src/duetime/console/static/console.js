// Everything works without this file. It draws the two live charts, says whether the page is live, and asks before
// something is removed for good.
"use strict";

const charts = new Map();

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(element) {
  if (!window.uPlot || !element.dataset.chart) return;
  const { labels, data } = JSON.parse(element.dataset.chart);
  const known = charts.get(element.id);
  if (known && known.root.isConnected && known.labels === labels.join()) {
    known.setData(data);
    return;
  }
  const lines = ["--accent", "--ready", "--dead"];
  const value = (_, raw) => (raw == null ? "" : raw.toLocaleString(document.documentElement.lang));
  // Times are UTC, as everywhere in the console.
  const clock = (at) => new Date(at * 1000).toISOString();
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  element.replaceChildren();
  const chart = new uPlot(
    {
      width: element.clientWidth,
      height: 200,
      padding: [null, 32, null, null],
      legend: { live: true },
      cursor: { y: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => clock(at).slice(11, at % 60 ? 19 : 16)), space: 70 }, { ...axis, size: 70 }],
      series: [
        { label: "UTC", value: (_, at) => (at == null ? "" : clock(at).slice(0, 19).replace("T", " ")) },
        ...labels.map((label, place) => ({
          label,
          value,
          stroke: color(lines[place]),
          width: 2,
          spanGaps: true,
          points: { show: data[0].length < 3 },
        })),
      ],
    },
    data,
    element,
  );
  chart.labels = labels.join();
  charts.set(element.id, chart);
}

function drawAll() {
  document.querySelectorAll(".chart").forEach(draw);
}

// Why the page may be old: the server or a store does not answer. Nothing here means that it is live.
const troubles = new Map();

function say(who, text) {
  if (text) troubles.set(who, text);
  else troubles.delete(who);
  const state = document.getElementById("live-state");
  const lost = document.getElementById("lost");
  const on = troubles.size === 0;
  if (state) {
    state.textContent = on ? state.dataset.on : state.dataset.off;
    state.classList.toggle("on", on);
  }
  if (lost) {
    lost.hidden = on;
    lost.textContent = [...troubles.values()][0] || "";
  }
}

function noServer() {
  const lost = document.getElementById("lost");
  if (lost) say("server", lost.dataset.server);
}

function away(event) {
  const pools = JSON.parse(event.data);
  say("store", pools.length ? document.getElementById("lost").dataset.store.replace("{pools}", pools.join(", ")) : "");
}

document.addEventListener("DOMContentLoaded", () => {
  drawAll();
  // The chart of a page that is refreshed stays; only its numbers come from the new page.
  if (window.Idiomorph) {
    Idiomorph.defaults.callbacks.beforeNodeMorphed = (node, fresh) => {
      if (node.classList && node.classList.contains("chart") && window.uPlot) {
        node.dataset.chart = fresh.dataset ? fresh.dataset.chart : node.dataset.chart;
        draw(node);
        return false;
      }
      return true;
    };
    // What somebody has unfolded stays so.
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => name !== "open" || node.tagName !== "DETAILS";
  }
});
window.addEventListener("resize", () => {
  charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: 200 }));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts.clear();
  drawAll();
});

document.addEventListener("htmx:sseOpen", (event) => {
  say("server", "");
  say("store", "");
  event.detail.source.addEventListener("away", away);
});
document.addEventListener("htmx:sseError", noServer);
document.addEventListener("htmx:sseClose", noServer);
document.addEventListener("htmx:sendError", noServer);
document.addEventListener("htmx:afterSwap", drawAll);

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) {
    document.querySelectorAll(`input[name="${event.target.dataset.all}"]`).forEach((box) => {
      box.checked = event.target.checked;
    });
  }
});
