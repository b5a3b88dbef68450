//! What a plot shows, apart from how it is drawn.

mod draw;
mod scale;
mod theme;

use crate::report::Table;
use crate::report::fmt::number;

pub use scale::Scale;
pub use theme::CSS;

/// Lines in one plot that can still be told apart, by colour, dashes and marks.
pub const MAX_SERIES: usize = theme::SERIES.len();

#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    pub id: String,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    pub levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub label: String,
    pub scale: Scale,
}

impl Axis {
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    pub fn log2(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log2 }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    pub name: String,
    pub value: f64,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlotError {
    #[error("plot {plot} has no points")]
    Empty { plot: String },
    #[error("plot {plot} has {series} lines, more than {MAX_SERIES}; make several plots of it")]
    TooManySeries { plot: String, series: usize },
    #[error("plot {plot}: {value} in {name:?} has no place on the axis {axis:?}")]
    OffAxis { plot: String, name: String, axis: String, value: f64 },
    #[error("plot {plot} cannot be drawn: {why}")]
    Draw { plot: String, why: String },
}

impl Plot {
    pub fn to_svg(&self) -> Result<String, PlotError> {
        draw::svg(self, draw::Form::Inline)
    }

    pub fn to_svg_file(&self) -> Result<String, PlotError> {
        draw::svg(self, draw::Form::File)
    }

    pub fn description(&self) -> String {
        let mut text = format!("{} against {}.", self.y.label, self.x.label);
        for Series { name, points } in &self.series {
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            let y = |point: &(f64, f64)| number(point.1);
            let at = |point: &(f64, f64)| format!("{} at {}", y(point), self.x.scale.name(point.0));
            let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
            text += &match (points.len(), points.iter().min_by(by_y), points.iter().max_by(by_y)) {
                (1, ..) => format!(" {name}: {}.", at(first)),
                (n, Some(least), Some(most)) => {
                    format!(" {name}: {n} points, {} to {}; least {}, most {}.", at(first), at(last), y(least), y(most))
                }
                _ => continue,
            };
        }
        for Level { name, value } in &self.levels {
            text += &format!(" {name}: {}.", number(*value));
        }
        text
    }

    pub fn table(&self) -> Table {
        let mut xs: Vec<f64> = self.series.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let names = self.series.iter().map(|series| &series.name).chain(self.levels.iter().map(|level| &level.name));
        let cell = |series: &Series, x: f64| {
            let ys: Vec<_> = series.points.iter().filter(|point| point.0 == x).map(|point| number(point.1)).collect();
            if ys.is_empty() { "–".to_owned() } else { ys.join(", ") }
        };
        Table {
            id: format!("{}-data", self.id),
            caption: format!("{}: {}", self.title, self.y.label),
            header: std::iter::once(&self.x.label).chain(names).cloned().collect(),
            rows: xs
                .into_iter()
                .map(|x| {
                    let levels = self.levels.iter().map(|level| number(level.value));
                    let series = self.series.iter().map(|series| cell(series, x));
                    std::iter::once(self.x.scale.name(x)).chain(series).chain(levels).collect()
                })
                .collect(),
            words: 1,
        }
    }
}

#[cfg(test)]
mod tests;
