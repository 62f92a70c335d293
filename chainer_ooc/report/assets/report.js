'use strict';
// Reads the numbers of the page, and shows one budget's course of the iteration: figures, charts and the table of maps.

const numbers = JSON.parse(document.getElementById('numbers').textContent);
const byId = (id) => document.getElementById(id);
const state = {course: numbers.shown, chosen: null, sort: {key: 'bytes', up: false}, plot: null, lanes: null};
const DONE = {keep: 'kept', swap: 'swapped', recompute: 'recomputed'};
const SIGNS = {keep: '■', swap: '⇅', recompute: '↻'};
const CAUSES = {
  'swap-in': ['swap-in', 'waits for a swap-in'], memory: ['stall-memory', 'waits for memory'],
  'swap-out': ['swap-out', 'waits for a swap-out'],
};

function element(tag, text = '', name = '') {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function rows(flat, width) {
  return Array.from({length: flat.length / width}, (_, row) => flat.slice(row * width, (row + 1) * width));
}

/** What a position is called, and where in the model it is. */
function position(number) {
  const forward = number < numbers.calls.length;
  const call = forward ? number : numbers.steps[number - numbers.calls.length];
  if (call < 0) return {name: 'a function outside of the graph, backward', where: ''};
  const [label, path, line] = numbers.calls[call];
  return {name: `${label}, ${forward ? 'forward' : 'backward'} of call ${call}`,
          where: [path, line].filter(Boolean).join(' · ')};
}

function maker(map) {
  const row = numbers.maps.find((each) => each[0] === map);
  if (!row) return {name: `map ${map}`, where: ''};
  if (row[2] === null) return {name: 'the batch', where: '', bytes: row[1]};
  const [label, path, line] = numbers.calls[row[2]];
  return {name: label, where: [path, line].filter(Boolean).join(' · '), bytes: row[1]};
}

/** The lanes of a course as bars, times in microseconds. */
function lanes(course) {
  let now = 0;
  const compute = rows(course.compute, 3).map(([pause, duration, again], at) => {
    const start = now + pause;
    now = start + duration;
    return {start, end: now, again, position: at};
  });
  const copies = (flat, name) => rows(flat, 3).map(([map, start, duration]) => (
    {map, start, end: start + duration, colour: 'copy', tells: `copy ${name}`}));
  const bars = compute.flatMap(({start, end, again, position: at}) => {
    const way = at < numbers.calls.length ? 'forward' : 'backward';
    const bar = {start: start + again, end, position: at, colour: way};
    const before = {start, end: start + again, position: at, colour: 'again', isHatched: true, tells: 'runs again first'};
    return again ? [before, bar] : [bar];
  });
  const ends = new Map();
  for (const [at, map, duration, cause] of [...course.stalls].reverse()) {
    const end = ends.get(at) ?? compute[at].start;
    ends.set(at, end - duration);
    bars.push({start: end - duration, end, position: at, map, colour: CAUSES[cause][0], isHatched: true,
               tells: CAUSES[cause][1]});
  }
  return {compute, bars, end: now, out: copies(course.out, 'out'), in: copies(course.in, 'in')};
}

function memory(course, positions) {
  return course.memory.map((flat) => {
    const bytes = new Array(positions).fill(0);
    let [at, now] = [0, 0];
    for (const [skip, change] of rows(flat, 2)) {
      bytes.fill(now, at, at + skip);
      [at, now] = [at + skip, now + change];
    }
    return bytes.fill(now, at);
  });
}

function colours() {
  const names = {'parameters and optimizer state': 'parameters', gradients: 'gradients', 'other maps': 'others',
                 scratch: 'scratch'};
  const blocks = numbers.blocks.filter((each) => each !== 'other maps');
  const step = blocks.length > 1 ? 6 / (blocks.length - 1) : 0;
  return numbers.kinds.map((kind) => colour(names[kind] ?? `block${Math.round(blocks.indexOf(kind) * step)}`));
}

function showFigures(course) {
  const {in_core: whole, measured} = numbers;
  const causes = Object.entries(CAUSES).map(([cause, [, words]]) => (
    [words.replace('waits ', ''), course.stalls.filter((each) => each[3] === cause).reduce((sum, each) => sum + each[2], 0)]));
  const bound = course.bound_seconds;
  const tile = (name, figure, beside) => {
    const made = element('div');
    made.append(element('dt', name), element('dd', figure, 'figure'), element('dd', beside, 'beside'));
    return made;
  };
  const tiles = [
    tile('Time of an iteration', forms.seconds(course.seconds),
         whole.seconds ? `${forms.percent(course.seconds / whole.seconds - 1)} to ${forms.seconds(whole.seconds)} in-core`
           : 'the trace has no times'),
    tile('No plan is faster than', bound === null ? 'not known' : forms.seconds(bound),
         bound === null ? 'takes SciPy; policy unified has none' : `proven; within ${
           (Math.ceil(Math.max(course.gap, 0) * 1000 - 1e-6) / 10).toFixed(1)} %`),
    tile('Peak', forms.bytes(course.peak_bytes), `${forms.bytes(whole.peak_bytes)} in-core`),
    tile('Copied out', forms.bytes(course.swapped_out_bytes), `${forms.bytes(course.swapped_in_bytes)} in`),
    tile('Waits', forms.seconds(course.stall_seconds),
         causes.filter((each) => each[1]).map(([words, sum]) => `${forms.seconds(sum / 1e6)} ${words}`).join(', ')
           || 'no computation waits'),
    tile('Runs again', forms.seconds(course.recomputed_seconds),
         `maps: ${course.keep} kept, ${course.swap} swapped, ${course.recompute} recomputed`)];
  if (measured && state.course === numbers.shown) {
    tiles.splice(1, 0, tile('Measured', forms.seconds(measured.seconds),
                    `${course.seconds ? forms.percent(measured.seconds / course.seconds - 1) : '?'} to predicted; peak ${
                      forms.bytes(measured.peak_bytes)}`));
  }
  byId('figures').replaceChildren(...tiles);
  byId('budget-shown').textContent = forms.bytes(course.budget_bytes);
}

function showLegends(shown, measured) {
  const entry = (name, background, sign = '') => {
    const made = element('li');
    const mark = element('i', '', sign);
    if (background) mark.style.background = background;
    made.append(mark, name);
    return made;
  };
  byId('kinds').replaceChildren(
    ...numbers.kinds.map((kind, place) => entry(kind, shown.colours[place])).reverse(), entry('budget', '', 'rule dashed'),
    ...(measured?.near.length ? [entry('measured', '', 'rule')] : []));
  const present = new Set([shown, measured].flatMap((each) => each ? each.bars.map((bar) => bar.colour) : []));
  const signs = {forward: 'forward', backward: 'backward', again: 'runs again',
                 ...Object.fromEntries(Object.values(CAUSES))};
  byId('signs').replaceChildren(...Object.entries(signs).filter(([name]) => present.has(name)).map(
    ([name, words]) => entry(words, `var(--${name})`)));
}

function tip(at, lines) {
  const box = byId('tip');
  box.hidden = lines === null;
  if (lines === null) return;
  const [first, ...rest] = lines.filter(Boolean);
  box.replaceChildren(element('b', first), ...rest.map((each) => element('div', each)));
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(at.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${at.clientY + height + 20 > innerHeight ? at.clientY - height - 12 : at.clientY + 16}px`;
}

function aboutBar({bar}) {
  const span = `${forms.seconds((bar.end - bar.start) / 1e6)}, from ${forms.seconds(bar.start / 1e6)} on`;
  if (bar.position !== undefined) {
    const {name, where} = position(bar.position);
    const of = bar.map >= 0 ? `for map ${bar.map}: ${maker(bar.map).name}` : '';
    return [bar.tells ? `${bar.tells} ${of}` : name, bar.tells ? name : where, span];
  }
  const {name, where, bytes} = maker(bar.map);
  return [`${bar.tells} of map ${bar.map}, ${bytes === undefined ? '' : forms.bytes(bytes)}`, name, where, span];
}

function showCharts(course) {
  const shown = {...lanes(course), colours: colours(), kinds: numbers.kinds, budget: course.budget_bytes};
  shown.memory = memory(course, shown.compute.length);
  const own = state.course === numbers.shown ? numbers.measured : null;
  const measured = own && {...lanes(own), near: own.near_bytes};
  if (measured) measured.end = own.seconds * 1e6;
  const groups = [{title: 'predicted', course: shown},
                  ...(measured?.compute.length ? [{title: 'measured', course: measured}] : [])];
  state.lanes = new Lanes(byId('lanes'), groups);
  state.lanes.chosen = state.chosen;
  state.plot = drawMemory(byId('memory'), shown, measured, {
    onDraw: (u) => state.lanes.draw(u),
    onPoint: (at, u) => {
      if (at === null || !u.cursor.event) return tip(null, null);
      const held = shown.memory.map((bytes, kind) => [bytes[at], numbers.kinds[kind]]).filter((each) => each[0]);
      const total = held.reduce((sum, each) => sum + each[0], 0);
      return tip(u.cursor.event, [`${forms.bytes(total)} at ${position(at).name}`, position(at).where,
                                  ...held.reverse().map(([bytes, kind]) => `${forms.bytes(bytes)} ${kind}`)]);
    },
  });
  showLegends(shown, measured);
  byId('trade').previousElementSibling.hidden = byId('trade').hidden = numbers.courses.length < 2;
  if (numbers.courses.length > 1) drawTrade(byId('trade'), numbers.courses, state.course);
}

const COLUMNS = [
  {key: 'where', heading: 'where it is made', value: (each) => each.id},
  {key: 'bytes', heading: 'size', value: (each) => each.bytes, number: true},
  {key: 'verdict', heading: 'verdict', value: (each) => Object.keys(DONE).indexOf(each.verdict)},
  {key: 'waits', heading: 'waits', value: (each) => each.stall, number: true},
  {key: 'why', heading: 'with another verdict', value: (each) => each.cost},
];

function why(others, held, course) {
  if (!others.length) return held ?? '';
  return others.map(([verdict, time, bytes]) => {
    const begin = `if ${DONE[verdict]}, `;
    if (time === null) return `${begin}needs ${forms.bytes(bytes)}: over the budget`;
    const more = time / 1e6 - course.seconds;
    return begin + (Math.abs(more) < 1e-6 ? 'takes the same time'
      : `takes ${forms.seconds(Math.abs(more))} ${more > 0 ? 'more' : 'less'}`);
  }).join('; ');
}

function showMaps(course) {
  const {key, up} = state.sort;
  const value = COLUMNS.find((each) => each.key === key).value;
  const found = numbers.maps.map(([id, bytes, , , , , held], place) => {
    const [verdict, stall, others] = course.maps[place];
    const costs = others.map((each) => each[1] === null ? Infinity : each[1]);
    return {id, bytes, verdict, stall, others, held, cost: costs.length ? Math.min(...costs) : -1};
  }).sort((one, other) => ((value(one) - value(other)) || (one.id - other.id)) * (up ? 1 : -1));
  byId('maps-about').textContent = `${found.length} maps that backward reads. A row that is chosen is marked in the lanes.`;
  for (const heading of document.querySelectorAll('#maps th')) {
    heading.ariaSort = heading.dataset.key === key ? (up ? 'ascending' : 'descending') : 'none';
  }
  document.querySelector('#maps tbody').replaceChildren(...found.map((each) => {
    const row = element('tr');
    const {name, where} = maker(each.id);
    const cell = element('td', '', 'where');
    const [path, line] = where.split(' · ');
    cell.append(element('b', `${name} `), `map ${each.id}`, element('span', [path, line].filter(Boolean).join(' · ')));
    const verdict = element('td', '', 'verdict');
    verdict.append(element('i', SIGNS[each.verdict]), DONE[each.verdict]);
    row.append(cell, element('td', forms.bytes(each.bytes), 'number bytes'), verdict,
               element('td', each.stall ? forms.seconds(each.stall / 1e6) : '', 'number waits'),
               element('td', why(each.others, each.held, course), 'why'));
    row.dataset.map = each.id;
    row.tabIndex = 0;
    row.className = each.id === state.chosen ? 'chosen' : '';
    return row;
  }));
}

function choose(map) {
  state.chosen = map === state.chosen ? null : map;
  for (const row of document.querySelectorAll('#maps tbody tr')) {
    row.className = Number(row.dataset.map) === state.chosen ? 'chosen' : '';
  }
  state.lanes.chosen = state.chosen;
  state.lanes.draw(state.plot);
}

function show() {
  const course = numbers.courses[state.course];
  showFigures(course);
  showCharts(course);
  showMaps(course);
}

function begin() {
  byId('title').textContent = numbers.title;
  byId('about').textContent = [
    `policy ${numbers.policy}`, `${numbers.calls.length} calls`, `${numbers.steps.length} steps of backward`,
    numbers.device, numbers.machine].filter(Boolean).join(' · ');
  byId('foot').textContent = `Predicted times and bytes are the simulator's, from the times of the recording${
    numbers.measured ? '; measured ones are those of one iteration of the training' : ''}. Scratch is what a call or step `
    + `allocates while it runs. Amounts are in powers of 1000. ${numbers.made_by}.`;
  const slider = byId('budget');
  slider.max = numbers.courses.length - 1;
  slider.value = state.course;
  slider.disabled = numbers.courses.length < 2;
  byId('budgets').replaceChildren(...numbers.courses.map((_, place) => Object.assign(element('option'), {value: place})));
  byId('least').textContent = forms.bytes(numbers.courses[0].budget_bytes);
  byId('most').textContent = forms.bytes(numbers.courses[numbers.courses.length - 1].budget_bytes);
  slider.addEventListener('input', () => { state.course = Number(slider.value); show(); });
  const head = document.querySelector('#maps thead tr');
  for (const {key, heading, number} of COLUMNS) {
    const made = element('th', '', number ? 'number' : '');
    made.dataset.key = key;
    made.scope = 'col';
    made.append(element('button', heading));
    made.firstChild.addEventListener('click', () => {
      state.sort = {key, up: state.sort.key === key ? !state.sort.up : key === 'where'};
      showMaps(numbers.courses[state.course]);
    });
    head.append(made);
  }
  const body = document.querySelector('#maps tbody');
  const rowOf = (event) => event.target.closest('tr')?.dataset.map;
  body.addEventListener('click', (event) => choose(Number(rowOf(event))));
  body.addEventListener('keydown', (event) => { if (event.key === 'Enter') choose(Number(rowOf(event))); });
  const canvas = byId('lanes');
  const under = (event) => {
    const {left, top} = canvas.getBoundingClientRect();
    return state.lanes.at(event.clientX - left, event.clientY - top);
  };
  for (const kind of ['pointermove', 'pointerdown']) {
    canvas.addEventListener(kind, (event) => {
      const found = under(event);
      tip(event, found && aboutBar(found));
    });
  }
  canvas.addEventListener('pointerleave', () => tip(null, null));
  canvas.addEventListener('click', (event) => {
    const map = under(event)?.bar.map;
    if (map === undefined || map < 0) return;
    choose(map);
    document.querySelector('#maps tr.chosen')?.scrollIntoView({block: 'nearest'});
  });
  let width = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; show(); } });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
  const printing = (now) => { document.documentElement.classList.toggle('printing', now); show(); };
  addEventListener('beforeprint', () => printing(true)); // canvases are drawn in the light of the paper
  addEventListener('afterprint', () => printing(false));
  show();
}

begin();
