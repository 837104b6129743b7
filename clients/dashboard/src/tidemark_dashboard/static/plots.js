// Plots, by uPlot. Their data is an attribute of the figure; colours are those of the style sheet.
import { currentZone, onZone, time, zoneOf } from "./times.js";

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
const inZone = (value) => `${at(value)} ${zoneOf(new Date(value * 1000))}`;

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
  return new Intl.DateTimeFormat(undefined, { ...parts, timeZone: currentZone() }).format(date);
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
  return new Intl.NumberFormat("en", { maximumFractionDigits: size < 10 ? 2 : size < 100 ? 1 : 0 }).format(value);
}

const STATES = ["open", "final", "final, idle", "final, incomplete"];

// The windows of a key: a statistic, in the band from min to max where it lies between them. The axis is the whole span.
function series(data, figure) {
  const unit = figure.dataset.unit ? ` ${figure.dataset.unit}` : "";
  const hasBand = data.max.some((each) => each != null);
  const line = { stroke: () => colour("data"), width: 2, points: { show: false, filter: () => alone(data.value), size: 5 } };
  const edge = { stroke: "transparent", points: { show: false } };
  const newest = Math.max(data.state.lastIndexOf(1), data.state.lastIndexOf(2));
  return {
    columns: hasBand ? [data.t, data.max, data.min, data.value] : [data.t, data.value],
    options: {
      axes: axes(short),
      scales: { x: { range: () => data.axis } },
      bands: hasBand ? [{ series: [1, 2], fill: () => colour("data-soft") }] : [],
      series: hasBand ? [{}, edge, edge, line] : [{}, line],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "windows" } },
      hooks: {
        drawClear: [(plot) => sessions(plot, data.sessions)],
        draw: [(plot) => marks(plot, data)],
        setSelect: [(plot) => zoom(plot, data.slide, figure.dataset.zoom)],
      },
    },
    newest: newest < 0 ? undefined : newest, // without the pointer: the newest complete window
    readout: (i) =>
      data.value[i] == null
        ? ""
        : `${at(data.t[i] - data.half)} to ${inZone(data.t[i] + data.half)} · ${figure.dataset.name} ${numbers.format(data.value[i])}${unit} · ` +
          `${data.max[i] == null ? "" : `${numbers.format(data.min[i])} to ${numbers.format(data.max[i])} · `}${whole.format(data.count[i])} readings · ` +
          `${STATES[data.state[i]]}${data.revised[i] ? ", corrected" : ""}`,
  };
}

// A value between two gaps has no line: it is a point.
const alone = (values) => [...values.keys()].filter((i) => values[i] != null && values[i - 1] == null && values[i + 1] == null);

// What was marked with the pointer becomes the span of the address.
function zoom(plot, slide, address) {
  const { left, width } = plot.select;
  if (width < 6 || !address) return;
  const [since, until] = [left, left + width].map((each) => Math.round((plot.posToVal(each, "x") * 1000) / slide) * slide);
  const found = new URL(address, location.href);
  found.searchParams.set("span", Math.max(2 * slide, until - since));
  found.searchParams.set("until", Math.max(until, since + 2 * slide));
  location.assign(found);
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

function marks(plot, data) {
  const { ctx } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  data.t.forEach((t, i) => {
    const [isOpen, isIncomplete] = [data.state[i] === 0, data.state[i] === 3];
    if (data.value[i] == null || !(isOpen || isIncomplete || data.revised[i])) return;
    const x = plot.valToPos(t, "x", true);
    const y = plot.valToPos(data.value[i], "y", true);
    ctx.beginPath();
    if (isOpen || isIncomplete) {
      ctx.arc(x, y, 4 * scale, 0, 2 * Math.PI);
      ctx.fillStyle = colour("panel");
      ctx.fill();
      ctx.lineWidth = 2 * scale;
      ctx.strokeStyle = colour(isOpen ? "data" : "quiet");
      ctx.stroke();
    }
    if (isIncomplete) {
      ctx.beginPath();
      ctx.arc(x, y, 4 * scale, -Math.PI / 2, Math.PI / 2);
      ctx.fillStyle = colour("quiet");
      ctx.fill();
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
    readout: (i) => `batch ${whole.format(data.batch[i])} at ${inZone(data.t[i])} · ${whole.format(data.rows[i])} records`,
  };
}

// A pause, such as a restart, does not flatten the bars: the line of the trigger leaves the plot there.
function highest(took, every) {
  const sorted = every.filter((each) => each != null).sort((a, b) => a - b);
  const middle = sorted[sorted.length >> 1] ?? 0;
  return 1.05 * Math.max(...took, Math.min(3 * middle, sorted.at(-1) ?? 0), 0.001);
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
      scales: { x: room(data), y: { range: () => [0, highest(stacked.at(-1), data.every)] } },
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
    readout: (i) => `batch ${whole.format(data.batch[i])} at ${inZone(data.t[i])} · ${seconds(data.delay[i])} behind`,
  };
}

// The course of the service: lines on the axis of an hour or a day, with what happened as marks.
const COLOURS = ["data", "quiet", "bad", "skewed", "online", "offline"];
const MARKS = { start: "bad", restart: "bad", stop: "bad", query: "bad", views: "skewed", reference: "skewed" };

function course(data) {
  const names = Object.keys(data.series);
  const format = data.unit === "s" ? seconds : short;
  return {
    columns: [data.t, ...names.map((name) => data.series[name])],
    options: {
      axes: axes(format),
      scales: { x: { range: () => data.axis }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } },
      series: [
        {},
        ...names.map((name, n) => ({ stroke: () => colour(COLOURS[n % COLOURS.length]), width: 2, points: { show: false, filter: () => alone(data.series[name]), size: 4 } })),
      ],
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "course" } },
      hooks: { drawClear: [(plot) => happened(plot, data)] },
    },
    readout: (i) => `${inZone(data.t[i])} · ${names.map((name) => `${name.replace(/_s$/, "")} ${data.series[name][i] == null ? "–" : format(data.series[name][i])}`).join(" · ")}${data.unit === "s" ? "" : ` ${data.unit}`}`,
  };
}

function happened(plot, data) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const [kind, at_s, until, ] of data.marks) {
    const left = plot.valToPos(Math.max(at_s, data.axis[0]), "x", true);
    if (kind === "alert") {
      const width = Math.max(2 * devicePixelRatio, plot.valToPos(until ?? data.axis[1], "x", true) - left);
      ctx.fillStyle = colour("warn-soft");
      ctx.fillRect(left, bbox.top, width, bbox.height);
      ctx.fillStyle = colour("quiet");
      ctx.fillRect(left, bbox.top, width, 3 * devicePixelRatio);
    } else {
      ctx.strokeStyle = colour(MARKS[kind] ?? "muted");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

const kinds = { series, rows, phases, delay, course };

function make(figure) {
  const canvas = figure.querySelector(".canvas");
  const data = JSON.parse(figure.dataset.plot);
  const { columns, options, readout, newest } = kinds[figure.dataset.kind](data, figure);
  const text = figure.querySelector(".readout");
  const show = (plot) => {
    const index = plot.cursor.idx ?? newest ?? data.t.length - 1;
    text.textContent = index >= 0 ? readout(index) : "";
  };
  const plot = new uPlot(
    {
      width: canvas.clientWidth,
      height: canvas.clientHeight,
      // A label of the last second, "19:06:30", reaches 28 px over the edge of the axis.
      padding: [8, 30, 0, 0],
      legend: { show: false },
      ...options,
      cursor: { points: { show: figure.dataset.kind === "series" }, ...(options.cursor ?? { y: false, drag: { x: false, y: false } }) },
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
onZone(() => plots.forEach((_, figure) => remake(figure)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(({ plot }) => plot.redraw(false)));
