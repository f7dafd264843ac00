// A plot over time. Its lines, from the first to the last: [title, colour of the style sheet]. `text` is that of a value.
// `stacked` shows the share of each line in their sum, `log` has powers of ten, and `whole` counts things.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { number } from "./format.js";

const HEIGHT = 168;

export function Plot({ title, data, lines, stacked, log, whole, theme, text = number }) {
  const box = useRef(), plot = useRef();
  const given = stacked ? stack(data) : data;
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const shown = (value) => (value == null ? "–" : text(value));
    const series = lines.map(([label, name], i) => ({
      label, stroke: colour(name), width: stacked ? 0 : 1.75, points: { show: !stacked, size: 5, fill: colour(name), filter: stacked ? () => null : alone },
      paths: stacked ? uPlot.paths.bars({ size: [0.92, Infinity], align: -1 }) : undefined,
      fill: stacked || !i ? (stacked ? colour(name) : colour("--accent-faint")) : undefined,
      value: (_, value, seriesIndex, at) => shown(stacked ? data[seriesIndex][at ?? data[0].length - 1] : value),
    }));
    // The highest of a stack is drawn first, so that the lower ones cover it.
    const order = stacked ? [...series.keys()].reverse() : [...series.keys()];
    plot.current = new uPlot({
      width: box.current.clientWidth, height: HEIGHT, padding: [8, 22, 0, 0], legend: { live: true, markers: { width: 0, fill: (_, i) => colour(lines[order[i - 1]]?.[1] ?? "--line") } },
      cursor: { y: false, points: { size: 6 }, drag: { x: false }, sync: { key: "model" } },
      scales: { y: log ? { distr: 3, range: (_, low, high) => decades(low, high) } : { range: (_, low, high) => [0, stacked ? 1 : high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 90, size: 28, values: (_, marks) => marks.map((mark) => new Date(mark * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" })) },
             { ...axis, size: 60, values: (_, marks) => marks.map((mark) => (mark == null ? "" : stacked ? `${Math.round(100 * mark)} %` : shown(mark))), ...(whole ? { incrs: WHOLE } : log ? { splits: (_, index, low, high) => powers(low, high) } : {}) }],
      series: [{ value: (_, at) => (at == null ? "now" : new Date(at * 1000).toLocaleTimeString("en-GB")), label: "Time" }, ...order.map((i) => ({ ...series[i], value: (u, value, index, at) => shown(last(plot.data, i, at)) }))],
    }, [given[0], ...order.map((i) => given[i + 1])], box.current);
    plot.order = order;
    const observer = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    observer.observe(box.current);
    return () => { observer.disconnect(); plot.current.destroy(); };
  }, [theme, lines.map(([label]) => label).join()]);
  plot.data = data;
  useEffect(() => { plot.current.setData([given[0], ...plot.order.map((i) => given[i + 1])]); });
  const said = lines.map(([label], i) => `${label} ${text(last(data, i, null) ?? 0)}`).join(", ");
  return html`<div class="plot" ref=${box} role="img" aria-label=${`${title}. Now: ${said}.`}></div>`;
}

// The points with nothing on either side, which no line would show.
function alone(plot, line) {
  const values = plot.data[line];
  return [...values.keys()].filter((i) => values[i] != null && values[i - 1] == null && values[i + 1] == null);
}

const last = (data, line, at) => data[line + 1][at ?? data[0].length - 1];

function stack([seconds, ...lines]) {
  const sums = seconds.map(() => 0), all = seconds.map((_, i) => lines.reduce((sum, line) => sum + (line[i] || 0), 0));
  return [seconds, ...lines.map((line) => line.map((value, i) => (value == null ? null : (sums[i] += value / (all[i] || 1)))))];
}

const decades = (low, high) => (low > 0 ? [10 ** Math.floor(Math.log10(low)), 10 ** Math.max(Math.ceil(Math.log10(high)), Math.floor(Math.log10(low)) + 1)] : [1, 1000]);

function powers(low, high) {
  const found = [];
  for (let each = low; each <= high * 1.001; each *= 10) found.push(each);
  return found;
}

const WHOLE = [1, 10, 100, 1000, 10000, 100000].flatMap((power) => [power, 2 * power, 5 * power]);
