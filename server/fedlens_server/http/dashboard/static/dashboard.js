// The page of a task: charts from the server's figures, drawn anew after each round, and parts that are shown anew.
"use strict";

(() => {
  const charts = document.querySelector(".charts");
  const UNITS = ["B", "kB", "MB", "GB", "TB"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let figures = null;
  let drawn = [];

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function percent(value) {
    return value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)} %`;
  }

  function bytes(value) {
    if (value === null || value === undefined) return "-";
    const power = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(value) / 3));
    return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${UNITS[power]}`;
  }

  function draw(box) {
    const show = box.dataset.unit === "percent" ? percent : bytes;
    const lines = box.dataset.lines.split(";").map((each) => each.split(":"));
    const known = lines.filter(([key]) => figures[key].some((value) => value !== null));
    box.replaceChildren();
    if (figures.round.length === 0 || known.length === 0) {
      box.textContent = figures.round.length ? "Nothing was measured." : "No round has committed.";
      return null;
    }
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const last = known.map(([key, label]) => `${label} ${show(figures[key].at(-1))}`).join(", ");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `Last committed round, ${figures.round.at(-1)}: ${last}`);
    return new uPlot({
      width: box.clientWidth,
      height: 240,
      scales: { x: { time: false }, y: { range: box.dataset.unit === "percent" ? [0, 1] : (_, __, most) => [0, most * 1.1 || 1] } },
      axes: [
        { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100] },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (box.dataset.unit === "percent" ? `${Math.round(100 * tick)} %` : bytes(tick))) },
      ],
      series: [
        { label: "round" },
        ...known.map(([key, label]) => ({
          label,
          stroke: colour(`--line-${lines.findIndex(([other]) => other === key) + 1}`),
          width: 2,
          spanGaps: true,
          points: { show: figures.round.length < 30 },
          value: (_, value) => show(value),
        })),
      ],
    }, [figures.round, ...known.map(([key]) => figures[key])], box);
  }

  function drawAll() {
    if (figures === null) return;
    drawn.forEach((chart) => chart && chart.destroy());
    drawn = [...charts.querySelectorAll(".chart")].map(draw);
  }

  async function load() {
    const answer = await fetch(charts.dataset.source);
    if (!answer.ok || !(answer.headers.get("Content-Type") || "").includes("json")) return;
    figures = await answer.json();
    drawAll();
  }

  // A part that is shown anew keeps what was opened in it, and the focus.
  let opened = null;
  let focused = null;
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const details = event.detail.target.querySelector("details");
    const active = event.detail.target.contains(document.activeElement) ? document.activeElement : null;
    opened = details && details.open;
    focused = active && (active.getAttribute("href") ? `a[href="${active.getAttribute("href")}"]` : active.tagName);
  });

  function stands() {
    return document.querySelector("[data-stands]").dataset.stands;
  }

  // Not once it has settled: until then the part would stand as it came.
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const details = event.detail.target.querySelector("details");
    if (details && opened !== null) details.open = opened;
    const again = focused && event.detail.target.querySelector(focused);
    if (again) again.focus({ preventScroll: true });
  });

  let before = stands();
  document.body.addEventListener("htmx:afterSettle", () => {
    if (stands() !== before) {
      before = stands();
      htmx.trigger(document.body, "fedlens:changed");
      load();
    }
  });
  dark.addEventListener("change", drawAll);
  let resizing = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(drawAll);
  });
  load();
})();
