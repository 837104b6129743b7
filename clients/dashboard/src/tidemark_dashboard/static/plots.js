// Plots, by uPlot. Their data is an attribute of the figure; colours are those of the style sheet.
import { time } from "./times.js";

/* global uPlot */
const plots = new Map();
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 2, minimumFractionDigits: 2 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
function seconds(value) {
  if (value == null) return "–";
  if (value < 1) return value === 0 ? "0 s" : `${whole.format(value * 1000)} ms`;
  if (value < 120) return `${Number(value.toFixed(1))} s`;
  return value < 7200 ? `${Number((value / 60).toFixed(1))} min` : value < 172800 ? `${Number((value / 3600).toFixed(1))} h` : `${whole.format(value / 86400)} d`;
}
const at = (value) => time(new Date(value * 1000));

function axes(format) {
  const common = { stroke: () => colour("muted"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return [
    { ...common, grid: { show: false }, space: 70, size: 26, values: (_, ticks, __, ___, step) => ticks.map((each) => label(each, step)) },
    { ...common, size: 58, values: (_, ticks) => ticks.map(format) },
  ];
}

function label(value, step) {
  const date = new Date(value * 1000);
  const parts = step >= 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) };
  return new Intl.DateTimeFormat(undefined, parts).format(date);
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
  return new Intl.NumberFormat("en", { maximumFractionDigits: size < 10 ? 2 : size < 100 ? 1 : 0 }).format(value);
}

// The windows of a key: the mean in the band from the least to the most.
function series(data, figure) {
  const unit = figure.dataset.unit ? ` ${figure.dataset.unit}` : "";
  const isOpen = data.state.map((each) => each === 0);
  return {
    columns: [data.t, data.max, data.min, data.mean],
    options: {
      axes: axes(short),
      bands: [{ series: [1, 2], fill: () => colour("data-soft") }],
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: () => colour("data"), width: 2, points: { show: data.t.length === 1, size: 6 } },
      ],
      hooks: {
        drawClear: [(plot) => sessions(plot, data.sessions)],
        draw: [(plot) => marks(plot, data, isOpen)],
      },
    },
    readout: (i) =>
      data.mean[i] == null
        ? ""
        : `${at(data.t[i] - data.half)} to ${at(data.t[i] + data.half)} · mean ${numbers.format(data.mean[i])}${unit} · ` +
          `${numbers.format(data.min[i])} to ${numbers.format(data.max[i])} · ${whole.format(data.count[i])} readings · ` +
          `${isOpen[i] ? "open" : "final"}${data.revised[i] ? ", corrected" : ""}`,
  };
}

function sessions(plot, list) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const bar = 3 * devicePixelRatio;
  for (const [start, last, isOpen] of list) {
    const left = plot.valToPos(start, "x", true);
    const width = Math.max(2 * devicePixelRatio, plot.valToPos(last, "x", true) - left);
    ctx.fillStyle = colour("session");
    ctx.fillRect(left, bbox.top, width, bbox.height);
    ctx.fillStyle = colour(isOpen ? "online" : "offline");
    ctx.fillRect(left, bbox.top, width, bar);
  }
  ctx.restore();
}

function marks(plot, data, isOpen) {
  const { ctx } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  data.t.forEach((t, i) => {
    if (data.mean[i] == null || !(isOpen[i] || data.revised[i])) return;
    const x = plot.valToPos(t, "x", true);
    const y = plot.valToPos(data.mean[i], "y", true);
    ctx.beginPath();
    if (isOpen[i]) {
      ctx.arc(x, y, 4 * scale, 0, 2 * Math.PI);
      ctx.fillStyle = colour("panel");
      ctx.fill();
      ctx.lineWidth = 2 * scale;
      ctx.strokeStyle = colour("data");
      ctx.stroke();
    }
    if (data.revised[i]) {
      const size = 5 * scale;
      ctx.beginPath();
      ctx.moveTo(x, y - size);
      ctx.lineTo(x + size, y);
      ctx.lineTo(x, y + size);
      ctx.lineTo(x - size, y);
      ctx.closePath();
      ctx.fillStyle = colour("ink");
      ctx.fill();
    }
  });
  ctx.restore();
}

// Two pixels at least: the width follows from the two batches that are closest to each other.
const bars = () => uPlot.paths.bars({ size: [0.8, 40, 2], align: 0 });
const bar = (name) => ({ fill: () => colour(name), stroke: "transparent", width: 0, paths: bars(), points: { show: false } });

// Half a bar more on both sides: else the first and the last bar are cut in half.
function room(data) {
  const half = data.t.length > 1 ? (data.t.at(-1) - data.t[0]) / (data.t.length - 1) / 2 : 1;
  return { range: (_, low, high) => [low - half, high + half] };
}

function rows(data) {
  return {
    columns: [data.t, data.rows],
    options: { axes: axes(short), scales: { x: room(data), y: { range: (_, low, high) => [0, high || 1] } }, series: [{}, bar("data")] },
    readout: (i) => `batch ${whole.format(data.batch[i])} at ${at(data.t[i])} · ${whole.format(data.rows[i])} records`,
  };
}

function phases(data) {
  const names = ["cut", "run", "publish", "finish"];
  const stacked = names.map((_, n) => data.t.map((__, i) => names.slice(0, n + 1).reduce((sum, name) => sum + data[name][i], 0)));
  // The highest bar is drawn first: what is added last stays visible above the others.
  const drawn = names.map((name, n) => ({ name, values: stacked[n] })).reverse();
  return {
    columns: [data.t, ...drawn.map((each) => each.values), data.every],
    options: {
      axes: axes(seconds),
      scales: { x: room(data), y: { range: (_, low, high) => [0, high || 1] } },
      series: [
        {},
        ...drawn.map(({ name }) => bar(`phase-${name}`)),
        { stroke: () => colour("muted"), width: 2, dash: [5, 4], points: { show: false } },
      ],
    },
    readout: (i) =>
      `batch ${whole.format(data.batch[i])} · ${names.map((name) => `${name} ${seconds(data[name][i])}`).join(" · ")} · trigger ${seconds(data.every[i])}`,
  };
}

function delay(data) {
  return {
    columns: [data.t, data.delay],
    options: { axes: axes(seconds), scales: { y: { range: (_, low, high) => [0, (high || 1) * 1.05] } }, series: [{}, { stroke: () => colour("data"), width: 2, points: { show: false } }] },
    readout: (i) => `batch ${whole.format(data.batch[i])} at ${at(data.t[i])} · ${seconds(data.delay[i])} behind`,
  };
}

const kinds = { series, rows, phases, delay };

function make(figure) {
  const canvas = figure.querySelector(".canvas");
  const data = JSON.parse(figure.dataset.plot);
  const { columns, options, readout } = kinds[figure.dataset.kind](data, figure);
  const text = figure.querySelector(".readout");
  const show = (plot) => {
    const index = plot.cursor.idx ?? data.t.length - 1;
    text.textContent = index >= 0 ? readout(index) : "";
  };
  const plot = new uPlot(
    {
      width: canvas.clientWidth,
      height: canvas.clientHeight,
      // A label of the last second, "19:06:30", reaches 28 px over the edge of the axis.
      padding: [8, 30, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: figure.dataset.kind === "series" } },
      ...options,
      hooks: { ...options.hooks, setCursor: [show] },
    },
    columns,
    canvas,
  );
  show(plot);
  return plot;
}

function remake(figure) {
  plots.get(figure)?.plot.destroy();
  plots.set(figure, { source: figure.dataset.plot, plot: make(figure) });
}

export function draw(part) {
  for (const figure of part.querySelectorAll("figure[data-plot]")) {
    if (plots.get(figure)?.source !== figure.dataset.plot) remake(figure);
    sizes.observe(figure.querySelector(".canvas"));
  }
  for (const [figure, { plot }] of plots) {
    if (!figure.isConnected) {
      plot.destroy();
      plots.delete(figure);
    }
  }
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const found = plots.get(target.closest("figure"));
    if (found && Math.abs(found.plot.width - contentRect.width) > 1) found.plot.setSize({ width: contentRect.width, height: contentRect.height });
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(({ plot }) => plot.redraw(false)));
