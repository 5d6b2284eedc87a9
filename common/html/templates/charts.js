// Draw the charts of a page with Bokeh, each when it comes near the window: a page may hold a hundred of them. Paper gets
// drawings of its own width.
// M. Okabe, K. Ito, "Color universal design", 2008; dashes tell lines apart where colours do not.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b0508c", "#b07800", "#2b8fc4", "#7a4fb5", "#5c5c5c"];
const DASHES = ["solid", "solid", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2"];
const INK = "#5d6670";
const GRID = "#e2e6ea";
const LETTER = 6.5; // width of a character in pixels, about
const SLOT = 0.76; // of the room of a label, for its bars
const PAPER = 700; // width of a drawing on paper in pixels: that of a page between its margins, about
const LEGEND_ROW = 26; // height in pixels
const DOT_ROOM = 0.02; // of an axis, beyond its fixed ends

// Bokeh takes text between such marks for TeX.
const plain = (text) => text.replaceAll("$$", "$\u200b$").replaceAll("\\[", "\\\u200b[").replaceAll("\\(", "\\\u200b(");
const dashOf = (colour) => DASHES[(colour + Math.floor(colour / 8)) % 8]; // the ninth line is not the first
const numbers = (values) => values.map((value) => value ?? NaN);

function makeFigure(drawing, place) {
  const plot = Bokeh.Plotting.figure({
    height: place.clientHeight,
    sizing_mode: "stretch_width",
    x_axis_type: drawing.x.log ? "log" : "linear",
    y_axis_type: drawing.y.log ? "log" : "linear",
    tools: "box_zoom,pan,reset,save",
    toolbar_location: "above",
    toolbar_inner: true,
    outline_line_color: null,
    background_fill_color: null,
    border_fill_color: null,
    min_border_right: 14,
  });
  plot.toolbar.logo = null;
  plot.toolbar.autohide = true;
  plot.toolbar.stylesheets = [":host { background: none !important; }"]; // it lies on the plot
  // A finger that drags scrolls the page; a mouse zooms.
  const zoom = plot.toolbar.tools.find((tool) => tool instanceof Bokeh.BoxZoomTool);
  plot.toolbar.active_drag = matchMedia("(pointer: coarse)").matches ? null : zoom;
  return plot;
}

function labelTicks(axis, ticks) {
  axis.ticker = new Bokeh.FixedTicker({ ticks: ticks.map(([tick]) => tick) });
  axis.major_label_overrides = new Map(ticks.map(([tick, label]) => [tick, plain(label)]));
}

function styleAxes(plot, drawing) {
  for (const [axis, told] of [[plot.xaxes[0], drawing.x], [plot.yaxes[0], drawing.y]]) {
    axis.setv({
      axis_label: told.label ? plain(told.label) : null,
      axis_label_text_font_style: "normal",
      axis_label_text_font_size: "12px",
      axis_label_text_color: INK,
      major_label_text_font_size: "11px",
      major_label_text_color: INK,
      major_tick_in: 0,
      major_tick_out: 4,
      major_tick_line_color: INK,
      minor_tick_line_color: null,
      axis_line_color: INK,
    });
    if (told.format) axis.formatter = new Bokeh.NumeralTickFormatter({ format: told.format });
    else if (!told.log) axis.formatter.use_scientific = false;
    if (told.ticks.length) labelTicks(axis, told.ticks);
    else if (told.whole && !told.log) axis.ticker.min_interval = 1;
  }
  plot.xaxes[0].major_label_policy = new Bokeh.NoOverlap({ min_distance: 4 });
  plot.xgrid.grid_line_color = null;
  plot.ygrid.grid_line_color = GRID;
  plot.ygrid.ticker = plot.yaxes[0].ticker; // so that each line of the grid has a label
}

function drawLines(plot, lines, drawn) {
  for (const { name, x, y, dots, colour, bare } of lines) {
    const points = { x: numbers(x), y: numbers(y) };
    const look =
      colour === null
        ? { line_color: INK, line_dash: "3 3", line_width: 1.2 }
        : { line_color: COLOURS[colour % 8], line_dash: dashOf(colour), line_width: 2 };
    if (!bare) drawn.push([name, plot.line({ ...points, ...look })]);
    const isDot = (i) => y[i] !== null && (dots || ((y[i - 1] ?? null) === null && (y[i + 1] ?? null) === null));
    const kept = points.x.map((_, i) => i).filter(isDot); // a lone point has no line to be seen by
    const only = { x: kept.map((i) => points.x[i]), y: kept.map((i) => points.y[i]) };
    if (kept.length) drawn.push([name, plot.scatter({ ...only, size: 5, color: look.line_color })]);
  }
}

function drawAreas(plot, areas, drawn) {
  areas.forEach(({ name, edges, tops }, i) => {
    const bins = { left: edges.slice(0, -1), right: edges.slice(1), top: numbers(tops), bottom: tops.map(() => 0) };
    drawn.push([name, plot.quad({ ...bins, color: COLOURS[i % 8], fill_alpha: 0.25, line_alpha: 0.6 })]);
  });
}

function drawBars(plot, bars, labels, drawn, room) {
  const width = SLOT / bars.length;
  bars.forEach(({ name, tops, floor }, i) => {
    const x = tops.map((_, place) => place + (1 - SLOT) / 2 + (i + 0.5) * width);
    const look = { fill_color: COLOURS[i % 8], line_color: "white", line_width: 0.5 };
    drawn.push([name, plot.vbar({ x, width, top: numbers(tops), bottom: tops.map(() => floor), ...look })]);
  });
  const axis = plot.xaxes[0];
  labelTicks(axis, labels.map((label, i) => [i + 0.5, label]));
  const longest = Math.max(...labels.map((label) => label.length));
  if ((longest + 1) * LETTER * labels.length < room - 60) return;
  // Slanted lines of text need more room than upright ones, and overlap as boxes long before they do as text.
  const slot = (room - 60) / labels.length;
  axis.major_label_orientation = slot > 20 ? 0.6 : Math.PI / 2;
  if (slot > 12) axis.major_label_policy = new Bokeh.AllLabels();
}

function addHover(plot, { edges, texts }) {
  const [x0, x1] = [numbers(edges.slice(0, -1)), numbers(edges.slice(1))];
  if (x0.length === 1 && x0[0] === x1[0]) [x0[0], x1[0]] = [x0[0] * 0.5 - 1, x1[0] * 1.5 + 1];
  const source = new Bokeh.ColumnDataSource({ data: { x0, x1, text: texts } });
  const strips = plot.vstrip({ x0: { field: "x0" }, x1: { field: "x1" }, source, fill_alpha: 0, line_alpha: 0 });
  const look = { x0: { field: "x0" }, x1: { field: "x1" }, fill_color: INK, fill_alpha: 0.12, line_alpha: 0 };
  strips.hover_glyph = new Bokeh.VStrip(look);
  // Bokeh escapes what it puts in place of @text.
  const tooltips = '<div style="white-space:pre;font:12px system-ui,sans-serif">@text</div>';
  plot.add_tools(new Bokeh.HoverTool({ renderers: [strips], tooltips, visible: false }));
}

function addLegend(plot, drawn, width) {
  const byName = new Map();
  drawn.filter(([name]) => name).forEach(([name, it]) => byName.set(name, [...(byName.get(name) ?? []), it]));
  if (byName.size < 2) return;
  const items = [...byName].map(
    ([name, renderers]) => new Bokeh.LegendItem({ label: { value: plain(name) }, renderers }),
  );
  const longest = Math.max(...[...byName.keys()].map((name) => name.length));
  const ncols = Math.max(1, Math.min(items.length, Math.floor((width - 60) / (longest * LETTER + 45))));
  const text = { label_text_font_size: "12px", label_text_color: INK, label_height: 14, glyph_height: 14, spacing: 10 };
  const frame = { border_line_color: null, background_fill_color: null, location: "top_left", padding: 0, margin: 4 };
  const look = { orientation: "horizontal", click_policy: "hide", ...text, ...frame };
  plot.add_layout(new Bokeh.Legend({ items, ncols, ...look }), "above");
  plot.height += LEGEND_ROW * (Math.ceil(items.length / ncols) - 1); // the lines keep their room
}

function setRanges(plot, drawing, renderers) {
  const first = (drawing.lines ?? []).flatMap(({ y }) => y).find((value) => value !== null) ?? 0;
  for (const [name, { low, high, log }] of [["x_range", drawing.x], ["y_range", drawing.y]]) {
    // Bokeh cuts off the half of a dot or a line that lies beyond the end of an axis, so a fixed end gets room for it.
    const values = (drawing.lines ?? []).flatMap((line) => line[name[0]]).filter((value) => value !== null);
    const [least, most] = [low ?? Math.min(...values), high ?? Math.max(...values)];
    const length = log ? Math.log(most / least) : most - least;
    const room = drawing.lines ? DOT_ROOM * (Number.isFinite(length) ? length : 1) : 0;
    const beyond = (end, sign) => (log ? end * Math.exp(sign * room) : end + sign * room);
    const ends = { ...(low !== null && { start: beyond(low, -1) }), ...(high !== null && { end: beyond(high, 1) }) };
    const span = name === "y_range" && !log ? Math.abs(first) / 10 || 2 : 2; // of a single value: Bokeh has 2
    plot[name] = new Bokeh.DataRange1d({ renderers, range_padding: 0.06, default_span: span, ...ends });
  }
}

function makePlot(place, drawing) {
  const plot = makeFigure(drawing, place);
  const drawn = []; // [name, renderer]
  styleAxes(plot, drawing);
  drawLines(plot, drawing.lines ?? [], drawn);
  drawAreas(plot, drawing.areas ?? [], drawn);
  if (drawing.bars) drawBars(plot, drawing.bars, drawing.labels, drawn, place.clientWidth);
  setRanges(plot, drawing, drawn.map(([, renderer]) => renderer));
  addHover(plot, drawing.hover);
  addLegend(plot, drawn, place.clientWidth);
  place.style.height = `${plot.height}px`;
  return plot;
}

const drawingOf = (place) => JSON.parse(place.nextElementSibling.textContent);

async function draw(place) {
  near.unobserve(place);
  await Bokeh.Plotting.show(makePlot(place, drawingOf(place)), place);
}

async function drawForPaper(place) {
  const sheet = document.createElement("div");
  sheet.className = place.className;
  sheet.style.cssText = `position:fixed;left:-9999px;width:${PAPER}px`;
  document.body.append(sheet);
  const plot = makePlot(sheet, drawingOf(place));
  plot.toolbar_location = null;
  const view = await Bokeh.require("core/build_views").build_view(plot, { parent: null });
  view.build(sheet);
  const svg = view.export("svg").canvas;
  svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  svg.setAttribute("class", "paper");
  place.nextElementSibling.after(svg);
  view.remove();
  sheet.remove();
}

const places = document.querySelectorAll(".plot");
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "1000px" },
);
places.forEach((place) => near.observe(place));
// A browser that prints waits for the promises of this listener, but for no timer and no frame, as Plotting.show needs.
addEventListener("beforeprint", () => places.forEach(drawForPaper), { once: true });
