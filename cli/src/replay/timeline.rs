//! The course of a replay, in a bounded number of points.

use super::TimelinePoint;

/// The most points kept: more than a plot has columns of pixels.
const MAX_POINTS: usize = 1024;

/// Keeps the state at evenly spaced times. When there are too many points, every other one is dropped and the spacing
/// doubles, so memory stays the same however long the log is.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) points: Vec<TimelinePoint>,
    spacing_s: f64,
}

impl Timeline {
    pub(super) fn add(&mut self, point: TimelinePoint) {
        if self.points.last().is_some_and(|last| point.time_s < last.time_s + self.spacing_s) {
            return;
        }
        if self.points.len() == MAX_POINTS {
            let mut nth = 0;
            self.points.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            let covered = self.points.last().map_or(0.0, |last| last.time_s) - self.points[0].time_s;
            self.spacing_s = (covered / self.points.len() as f64).max(2.0 * self.spacing_s);
        }
        self.points.push(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_courses_keep_a_bounded_number_of_evenly_spaced_points() {
        let mut timeline = Timeline::default();
        for step in 0..1_000_000_u32 {
            timeline.add(TimelinePoint { time_s: f64::from(step) * 0.01, running: step, ..TimelinePoint::default() });
        }
        let points = timeline.points;
        assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&points.len()), "{}", points.len());
        assert_eq!(points[0].running, 0);
        assert!(points[points.len() - 1].time_s > 9_900.0);
        let gaps: Vec<f64> = points.windows(2).map(|pair| pair[1].time_s - pair[0].time_s).collect();
        let (least, most) = gaps.iter().fold((f64::MAX, 0.0_f64), |(a, b), &gap| (a.min(gap), b.max(gap)));
        assert!(most <= 2.1 * least, "{least} to {most}");
    }
}
