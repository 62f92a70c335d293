'use strict';
// Draws: memory over time (uPlot), lanes (a canvas on the same axis), time against the budget (uPlot). Each function is
// given what to draw and holds nothing, except for lanes, which know where their bars are.

const forms = {
  bytes(value) {
    const size = Math.abs(value);
    if (size >= 999.5e6) return `${(value / 1e9).toFixed(2)} GB`;
    if (size >= 999.5e3) return `${(value / 1e6).toFixed(size < 99.5e5 ? 1 : 0)} MB`;
    return size >= 1000 ? `${(value / 1e3).toFixed(1)} kB` : `${value} bytes`;
  },
  seconds(value) {
    const size = Math.abs(value);
    if (size === 0) return '0 s';
    if (size >= 1) return `${size >= 1000 ? value.toFixed(0) : Number(value.toPrecision(4))} s`;
    return size >= 1e-3 ? `${Number((value * 1e3).toPrecision(3))} ms` : `${Number((value * 1e6).toPrecision(3))} µs`;
  },
  percent: (value) => `${value >= 0 ? '+' : '−'}${Math.abs(value * 100).toFixed(1)} %`,
};

/** A colour of the style sheet, as it is in this light. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function font(size, weight = '') {
  return `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
}

/** Black or white, whichever is read better on a colour #rrggbb. */
function inkOn(background) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(background.slice(at, at + 2), 16) / 255);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 ? '#14171b' : '#ffffff';
}

function axis(more) {
  return {
    stroke: colour('quiet'), font: font(11), ticks: {show: false}, gap: 6,
    grid: {stroke: colour('line'), width: 1}, ...more,
  };
}

const BYTES = [[1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB'], [1, 'B']];
const SECONDS = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']];

/** Numbers in one unit, that of the largest, with as many digits as tell them apart. */
function ticks(units) {
  return (_, splits, number, space, step) => {
    const most = Math.max(...splits.map(Math.abs));
    const [size, name] = units.find(([each]) => most >= each) ?? units[units.length - 1];
    const digits = Math.min(20, Math.max(0, Math.ceil(1 - Math.log10(step / size)))); // steps are 1, 2, 2.5 or 5
    return splits.map((each) => each === 0 ? '0' : `${Number((each / size).toFixed(digits))} ${name}`);
  };
}

const WIDE = 640;
const GUTTER = () => innerWidth > WIDE ? 68 : 56;
const isPrinting = () => document.documentElement.classList.contains('printing');

/**
 * Memory over time, stacked.
 * @param {Element} into is emptied first.
 * @param {object} course times of positions (microseconds), rows of bytes by kind, budget, name and colour of the kinds
 * @param {?object} measured the same of one line, or null
 * @param {object} told onDraw(u) when it is drawn, also anew for another range of times; onPoint(position or null, u)
 */
function drawMemory(into, course, measured, told) {
  into.replaceChildren();
  const times = [...course.compute.map((each) => each.start), course.end].map((each) => each / 1e6);
  let below = new Array(course.compute.length).fill(0);
  const layers = course.memory.map((bytes) => (below = below.map((each, position) => each + bytes[position])));
  const top = 1.1 * Math.max(course.budget, ...below, ...(measured ? measured.near : [0]));
  const closed = (row) => [...row, row[row.length - 1] ?? 0];
  const shown = layers.map((row, kind) => ({row, kind})).reverse();
  const end = Math.max(times[times.length - 1], measured ? measured.end / 1e6 : 0);
  const options = {
    width: into.clientWidth, height: innerWidth > WIDE && !isPrinting() ? 330 : 240, padding: [8, 2, 0, 0], legend: {show: false},
    cursor: {y: false, points: {show: false}, drag: {x: true, y: false}},
    scales: {x: {time: false, range: (_, least, most) => [least, most > least ? most : least + 1]}, y: {range: [0, top]}},
    axes: [axis({values: ticks(SECONDS), space: 70, size: 26}),
           axis({values: ticks(BYTES), size: GUTTER()})],
    series: [{}, ...shown.map(({kind}) => ({
      fill: course.colours[kind], stroke: course.colours[kind], width: 0, points: {show: false},
      paths: uPlot.paths.stepped({align: 1}),
    }))],
    hooks: {
      draw: [(u) => {
        labelBands(u, times, layers, course);
        drawRule(u, course.budget, `budget ${forms.bytes(course.budget)}`);
        if (measured && measured.near.length) drawMeasured(u, measured);
        told.onDraw(u);
      }],
      setCursor: [(u) => {
        const at = u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, 'x') * 1e6;
        told.onPoint(at === null ? null : lastBefore(course.compute, at), u);
      }],
    },
  };
  const data = [times, ...shown.map(({row}) => closed(row))];
  if (end > times[times.length - 1]) data.forEach((row, place) => row.push(place ? null : end));
  return new uPlot(options, data, into);
}

/** The number of the last of some rows that begins at a time or before it. */
function lastBefore(rows, at) {
  let low = 0;
  let high = rows.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (rows[middle].start <= at) low = middle; else high = middle;
  }
  return low;
}

/** Writes the name of each band into it, where it is thickest, if there is room. */
function labelBands(u, times, layers, course) {
  const pixels = devicePixelRatio;
  const context = u.ctx;
  context.save();
  context.font = font(11 * pixels, '600');
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  layers.forEach((row, kind) => {
    const under = kind ? layers[kind - 1] : row.map(() => 0);
    const half = context.measureText(course.kinds[kind]).width / 2 + 4 * pixels;
    const places = row.map((_, place) => place).sort((one, other) => row[other] - under[other] - row[one] + under[one]);
    for (const place of places.slice(0, 60)) {
      const x = u.valToPos((times[place] + times[place + 1]) / 2, 'x', true);
      const y = u.valToPos((row[place] + under[place]) / 2, 'y', true);
      if (x - half < u.bbox.left || x + half > u.bbox.left + u.bbox.width) continue;
      const steps = Array.from({length: 25}, (_, step) => half * (step / 12 - 1));
      const covers = steps.every((by) => {
        const there = lastBefore(course.compute, u.posToVal((x + by) / pixels - u.bbox.left / pixels, 'x') * 1e6);
        return u.valToPos(row[there], 'y', true) < y - 7 * pixels && u.valToPos(under[there], 'y', true) > y + 7 * pixels;
      });
      if (covers) {
        context.fillStyle = inkOn(course.colours[kind]);
        context.fillText(course.kinds[kind], x, y);
        break;
      }
    }
  });
  context.restore();
}

function drawRule(u, value, label) {
  const [context, pixels, y] = [u.ctx, devicePixelRatio, Math.round(u.valToPos(value, 'y', true))];
  context.save();
  context.strokeStyle = context.fillStyle = colour('ink');
  context.lineWidth = 1.5 * pixels;
  context.setLineDash([6 * pixels, 4 * pixels]);
  context.beginPath();
  context.moveTo(u.bbox.left, y);
  context.lineTo(u.bbox.left + u.bbox.width, y);
  context.stroke();
  context.font = font(12 * pixels, '600');
  context.textAlign = 'right';
  context.textBaseline = 'bottom';
  context.fillText(label, u.bbox.left + u.bbox.width - 2 * pixels, y - 3 * pixels);
  context.restore();
}

function drawMeasured(u, measured) {
  const [context, pixels] = [u.ctx, devicePixelRatio];
  const x = (at) => u.valToPos(at / 1e6, 'x', true);
  context.save();
  context.beginPath();
  context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  context.clip();
  for (const [width, stroke] of [[4, colour('paper')], [1.8, colour('ink')]]) { // a halo, to be seen on any band
    context.beginPath();
    measured.compute.forEach((each, position) => {
      const y = u.valToPos(measured.near[position], 'y', true);
      context.lineTo(x(each.start), y);
      context.lineTo(x(measured.compute[position + 1]?.start ?? each.end), y);
    });
    context.lineWidth = width * pixels;
    context.strokeStyle = stroke;
    context.stroke();
  }
  context.restore();
}

/** Where a lane's bars are, and what they are. */
class Lanes {
  constructor(canvas, groups, names) {
    this.canvas = canvas;
    this.names = names;
    this.rows = groups.flatMap(({title, course}) => [
      {label: 'compute', title, course, kind: 'compute', bars: course.bars},
      {label: 'copies out', title: '', course, kind: 'out', bars: course.out},
      {label: 'copies in', title: '', course, kind: 'in', bars: course.in}]);
    this.chosen = null;
  }

  /** Draws within the range and the place of the plot above. */
  draw(u) {
    const [canvas, pixels, narrow] = [this.canvas, devicePixelRatio, innerWidth <= WIDE];
    const [height, width] = [this._tops(), canvas.parentElement.clientWidth];
    canvas.style.height = `${height}px`;
    canvas.width = width * pixels;
    canvas.height = height * pixels;
    this.left = u.bbox.left / pixels;
    this.width = u.bbox.width / pixels;
    this.range = [u.scales.x.min * 1e6, u.scales.x.max * 1e6];
    const context = canvas.getContext('2d');
    context.scale(pixels, pixels);
    for (const row of this.rows) {
      context.font = font(narrow ? 10 : 11);
      context.fillStyle = colour('quiet');
      context.textAlign = 'right';
      context.textBaseline = 'middle';
      context.fillText(narrow ? row.kind : row.label, this.left - 6, row.top + 9);
      if (row.title) {
        context.textAlign = 'left';
        context.font = font(11, '600');
        context.fillText(row.title, this.left, row.top - 9);
      }
      context.fillStyle = colour('raised');
      context.fillRect(this.left, row.top, this.width, 18);
      context.save();
      context.beginPath();
      context.rect(this.left, row.top, this.width, 18);
      context.clip();
      row.bars.forEach((each) => this._bar(context, row, each));
      context.restore();
    }
  }

  _tops() {
    let top = 6;
    for (const row of this.rows) {
      top += row.title ? 18 : 0;
      row.top = top;
      top += row.kind === 'in' ? 26 : 21;
    }
    return top;
  }

  x(at) {
    const [least, most] = this.range;
    return this.left + (at - least) / (most - least) * this.width;
  }

  _bar(context, row, bar) {
    const left = this.x(bar.start);
    const width = Math.max(this.x(bar.end) - left, 1);
    if (left + width < this.left || left > this.left + this.width) return;
    const isChosen = this.chosen !== null && bar.map === this.chosen;
    context.globalAlpha = this.chosen === null || isChosen ? 1 : 0.3;
    context.fillStyle = colour(bar.colour);
    context.fillRect(left, row.top, width > 3 ? width - 0.5 : width, 18);
    if (bar.isHatched && width > 3) hatch(context, left, row.top, width, 18);
    if (isChosen) {
      context.globalAlpha = 1;
      context.fillStyle = colour('accent');
      context.fillRect(left - 1, row.top, Math.max(width, 3) + 1, 18);
    }
    context.globalAlpha = 1;
  }

  /** The bar at a point of the canvas, or null. */
  at(x, y) {
    const row = this.rows.find((each) => y >= each.top && y < each.top + 18);
    if (!row || x < this.left) return null;
    let [found, nearest] = [null, 3];
    for (const bar of row.bars) {
      const distance = Math.max(this.x(bar.start) - x, x - Math.max(this.x(bar.end), this.x(bar.start) + 1), 0);
      if (distance < nearest || (distance === 0 && bar.isHatched)) [found, nearest] = [bar, distance];
    }
    return found && {row, bar: found};
  }
}

function hatch(context, left, top, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.strokeStyle = 'rgb(255 255 255 / 0.55)';
  context.lineWidth = 1;
  context.beginPath();
  for (let x = left - height; x < left + width; x += 5) {
    context.moveTo(x, top + height);
    context.lineTo(x + height, top);
  }
  context.stroke();
  context.restore();
}

/** Time of an iteration and its proven bound against the budget; the budget in hand is marked. */
function drawTrade(into, courses, current) {
  into.replaceChildren();
  const budgets = courses.map((each) => each.budget_bytes);
  const rows = [courses.map((each) => each.seconds), courses.map((each) => each.bound_seconds)];
  const all = rows.flat().filter((each) => each !== null);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const margin = 0.15 * (most - least || most || 1);
  const label = (u, text, series, place, below) => {
    const [context, pixels] = [u.ctx, devicePixelRatio];
    const x = u.valToPos(budgets[place], 'x', true) + 6 * pixels;
    const y = u.valToPos(rows[series][place], 'y', true) + (below ? 17 : -9) * pixels;
    context.fillStyle = colour('ink');
    context.strokeStyle = colour('paper');
    context.lineWidth = 5 * pixels;
    context.lineJoin = 'round';
    context.font = font(11 * pixels);
    context.textAlign = 'left';
    context.strokeText(text, x, y); // a halo, to be read on any line
    context.fillText(text, x, y);
  };
  return new uPlot({
    width: into.clientWidth, height: isPrinting() ? 120 : 160, padding: [14, 24, 0, 0], legend: {show: false},
    cursor: {show: false}, scales: {x: {time: false}, y: {range: [least - margin, most + margin]}},
    axes: [axis({values: ticks(BYTES), space: 80, size: 26}),
           axis({values: ticks(SECONDS), size: GUTTER()})],
    series: [{}, {stroke: colour('forward'), width: 2, points: {show: true, size: 6, fill: colour('forward')}},
             {stroke: colour('swap-in'), width: 2, dash: [5, 4], points: {show: false}}],
    hooks: {draw: [(u) => {
      const [context, pixels] = [u.ctx, devicePixelRatio];
      const x = u.valToPos(budgets[current], 'x', true);
      context.save();
      context.setLineDash([]);
      label(u, 'found: the plan', 0, 0, false);
      if (rows[1][0] !== null) label(u, 'proven: no plan is faster', 1, 0, true);
      context.strokeStyle = context.fillStyle = colour('ink');
      context.lineWidth = 1.5 * pixels;
      context.beginPath();
      context.arc(x, u.valToPos(rows[0][current], 'y', true), 6 * pixels, 0, 7);
      context.stroke();
      context.restore();
    }]},
  }, [budgets, ...rows], into);
}
