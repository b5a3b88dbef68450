//! From a [`Plot`] to SVG, by plotters.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Fitted;
use super::theme::{AXIS, GRID, INK, LEVEL, Role, SERIES};
use super::{Axis, CSS, Level, Series, theme};
use crate::html::{Plot, PlotError};

// Units of the drawing: half a pixel where it is shown at its own width, since plotters only has whole units.
const WIDTH: u32 = 1120;
const CHART_HEIGHT: u32 = 640;
const LINE_HEIGHT: u32 = 48;
const FONT: f64 = 31.0;
const CHAR_WIDTH: f64 = 0.56;
/// Between a label and its axis: the tick, and room for digits, which are wider than the average.
const LABEL_GAP: u32 = 40;
const Y_LABELS: u32 = 128;
const X_LABELS: u32 = 108;
const RIGHT: u32 = 56;
const LEFT: i32 = 14;
const LEGEND_LINE: i32 = 64;
const LEGEND_GAP: i32 = 36;
const MARK: i32 = 9;
const MAX_MARKS: usize = 12;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Inline,
    File,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// plotters' error names a backend's; one that writes to memory has none of its own.
type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

pub(super) fn svg(plot: &Plot, form: Form) -> Result<String, PlotError> {
    if plot.series.len() > SERIES.len() {
        return Err(PlotError::TooManySeries { plot: plot.id.clone(), series: plot.series.len() });
    }
    let placed = Placed::new(plot)?;
    let legend = legend_rows(plot);
    let title_height = if form == Form::File { LINE_HEIGHT + 12 } else { 0 };
    let height = title_height + LINE_HEIGHT * legend.len() as u32 + CHART_HEIGHT;
    let mut drawing = String::new();
    let draw = |drawing: &mut String| -> Drawn {
        let root = SVGBackend::with_string(drawing, (WIDTH, height)).into_drawing_area();
        let (title, rest) = root.split_vertically(title_height);
        if form == Form::File {
            title.draw_text(&plot.title, &text(FONT * 1.15), (LEFT, 20))?;
        }
        let (top, chart) = rest.split_vertically(LINE_HEIGHT * legend.len() as u32);
        draw_legend(plot, &legend, &top)?;
        draw_chart(plot, &placed, &chart)?;
        root.present()?;
        Ok(())
    };
    draw(&mut drawing).map_err(|error| PlotError::Draw { plot: plot.id.clone(), why: error.to_string() })?;
    Ok(frame(plot, form, height, &drawing))
}

fn frame(plot: &Plot, form: Form, height: u32, drawing: &str) -> String {
    let inside = drawing.split_once('>').map_or("", |(_, rest)| rest).trim().trim_end_matches("</svg>");
    let (id, title, description) = (&plot.id, escape(&plot.title), escape(&plot.description()));
    let (style, namespace) = match form {
        Form::Inline => (String::new(), ""),
        Form::File => (format!("<style>\n{CSS}</style>\n"), " xmlns=\"http://www.w3.org/2000/svg\""),
    };
    format!(
        "<svg id=\"{id}\" class=\"plot\"{namespace} viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{title}</title>\n\
         <desc id=\"{id}-desc\">{description}</desc>\n{style}{}</svg>\n",
        theme::classify(inside)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(size: f64) -> TextStyle<'static> {
    // plotters takes the height of a line, which it assumes to be 1.24 times the font's.
    ("sans-serif", size * 1.24).into_font().color(&INK.light)
}

fn text_width(text: &str) -> u32 {
    (text.chars().count() as f64 * FONT * CHAR_WIDTH) as u32
}

impl Ranged for Fitted {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light lines would lie between the ticks; there are none.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.iter().map(|tick| tick.0).collect() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Fitted {
    fn format_ext(&self, at: &f64) -> String {
        self.ticks.iter().find(|tick| tick.0 == *at).map(|tick| tick.1.clone()).unwrap_or_default()
    }
}

struct Placed {
    series: Vec<Vec<(f64, f64)>>,
    levels: Vec<f64>,
}

impl Placed {
    fn new(plot: &Plot) -> Result<Self, PlotError> {
        let place = |axis: &Axis, name: &str, value: f64| {
            axis.scale.place(value).ok_or_else(|| PlotError::OffAxis {
                plot: plot.id.clone(),
                name: name.to_owned(),
                axis: axis.label.clone(),
                value,
            })
        };
        let of_series = |Series { name, points }: &Series| {
            points.iter().map(|&(x, y)| Ok((place(&plot.x, name, x)?, place(&plot.y, name, y)?))).collect()
        };
        let series: Vec<Vec<_>> = plot.series.iter().map(of_series).collect::<Result<_, PlotError>>()?;
        if series.iter().all(Vec::is_empty) {
            return Err(PlotError::Empty { plot: plot.id.clone() });
        }
        let levels = plot.levels.iter().map(|level| place(&plot.y, &level.name, level.value));
        Ok(Self { series, levels: levels.collect::<Result<_, _>>()? })
    }

    fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
    }
}

fn draw_chart(plot: &Plot, placed: &Placed, area: &Area<'_>) -> Drawn {
    let points = || placed.series.iter().flatten();
    let (least, most) = Placed::range(points().map(|point| point.0));
    let x = plot.x.scale.fit(least, most).until(&plot.x.scale, most);
    // A level has its name above it.
    let headroom = if plot.y.scale == super::Scale::Linear { 1.08 } else { 1.0 };
    let ys = points().map(|point| point.1).chain(placed.levels.iter().map(|level| level * headroom));
    let (least, most) = Placed::range(ys);
    let y = plot.y.scale.fit(least, most);
    // No label is cut: those of y end at the axis, those of x lie around their ticks.
    let widest = |axis: &Fitted| axis.ticks.iter().map(|tick| text_width(&tick.1)).max().unwrap_or(0) + LABEL_GAP;
    let y_labels = Y_LABELS.max(widest(&y));
    let x_label = widest(&x);
    let right = RIGHT.max(x_label / 2);
    let x = x.thinned((WIDTH - y_labels - right) / x_label);

    let style = text(FONT).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw_text(&plot.y.label, &style, (LEFT, LINE_HEIGHT as i32 / 2 + 8))?;
    let (_, area) = area.split_vertically(LINE_HEIGHT + 8);
    let mut chart = ChartBuilder::on(&area)
        .margin_right(right)
        .margin_top(12)
        .x_label_area_size(X_LABELS)
        .y_label_area_size(y_labels)
        .build_cartesian_2d(x.clone(), y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.light.stroke_width(2))
        .set_all_tick_mark_size(10)
        .axis_style(AXIS.light.stroke_width(2))
        .label_style(text(FONT))
        .axis_desc_style(text(FONT))
        .x_desc(&plot.x.label)
        .draw()?;
    for (Level { name, .. }, &at) in plot.levels.iter().zip(&placed.levels) {
        chart.draw_series(LineSeries::new([(x.from, at), (x.to, at)], LEVEL.light.stroke_width(4)))?;
        let style = text(FONT).color(&LEVEL.light).pos(Pos::new(HPos::Right, VPos::Bottom));
        // A little above the line.
        let text = Text::new(name.clone(), (0, -8), style);
        chart.draw_series([EmptyElement::at((x.to, at)) + text])?;
    }
    for (i, (points, role)) in placed.series.iter().zip(SERIES).enumerate() {
        chart.draw_series(LineSeries::new(points.iter().copied(), role.light.stroke_width(5)))?;
        let every = points.len().div_ceil(MAX_MARKS);
        // Lines on top of each other show the marks of both.
        let marked = points.iter().skip(if every > 1 { i * every / SERIES.len() } else { 0 }).step_by(every.max(1));
        chart.draw_series(marked.map(|&at| EmptyElement::at(at) + mark(i, role)))?;
    }
    Ok(())
}

fn legend_rows(plot: &Plot) -> Vec<Vec<(usize, i32)>> {
    let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
    let mut end = i32::MAX;
    for (i, Series { name, .. }) in plot.series.iter().enumerate() {
        let width = LEGEND_LINE + 12 + text_width(name) as i32;
        if end.saturating_add(LEGEND_GAP + width) > WIDTH as i32 {
            rows.push(Vec::new());
            end = LEFT - LEGEND_GAP;
        }
        let begin = end + LEGEND_GAP;
        end = begin + width;
        rows.last_mut().into_iter().for_each(|row| row.push((i, begin)));
    }
    rows
}

fn draw_legend(plot: &Plot, rows: &[Vec<(usize, i32)>], area: &Area<'_>) -> Drawn {
    for (row, entries) in rows.iter().enumerate() {
        let y = row as i32 * LINE_HEIGHT as i32 + 20;
        for &(i, x) in entries {
            let role = SERIES[i];
            area.draw(&PathElement::new(vec![(x, y), (x + LEGEND_LINE, y)], role.light.stroke_width(5)))?;
            area.draw(&(EmptyElement::at((x + LEGEND_LINE / 2, y)) + mark(i, role)))?;
            let style = text(FONT).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(&plot.series[i].name, &style, (x + LEGEND_LINE + 12, y))?;
        }
    }
    Ok(())
}

fn mark(i: usize, role: Role) -> Polygon<(i32, i32)> {
    Polygon::new(outline(i), role.light.filled())
}

fn outline(i: usize) -> Vec<(i32, i32)> {
    let m = MARK;
    match i % SERIES.len() {
        0 => (0..16)
            .map(|corner| f64::from(corner) * std::f64::consts::TAU / 16.0)
            .map(|angle| ((angle.cos() * 10.0).round() as i32, (angle.sin() * 10.0).round() as i32))
            .collect(),
        1 => vec![(-m, -m), (m, -m), (m, m), (-m, m)],
        2 => vec![(0, -m - 4), (m + 4, 0), (0, m + 4), (-m - 4, 0)],
        3 => vec![(0, -m - 2), (m + 2, m), (-m - 2, m)],
        4 => vec![(0, m + 2), (-m - 2, -m), (m + 2, -m)],
        _ => {
            let turn = |corners: &[(i32, i32); 3]| Some(corners.map(|(x, y)| (-y, x)));
            std::iter::successors(Some([(-3, -m - 2), (3, -m - 2), (3, -3)]), turn).take(4).flatten().collect()
        }
    }
}
