//! Which block size to take.
//!
//! The rule: of the sizes that give up at most [`UTILISATION_POINTS`] of utilisation and [`HIT_POINTS`] of prefix hits
//! against the best size, in every workload, the largest whose decode step is as fast as the fastest of them, in every
//! workload where it was measured. As fast is up to [`DECODE_NOISE`] slower, or up to the noise of the measurement, the
//! distance of the quartiles, if that is more. If one workload is fastest with this size and another with that, the size
//! whose worst workload loses least.

use super::{BlockSizeRow, BlockSizeStudy, Recommendation};

pub const UTILISATION_POINTS: f64 = 0.05;
pub const HIT_POINTS: f64 = 0.02;
pub const DECODE_NOISE: f64 = 0.03;

pub fn recommend(workloads: &[BlockSizeStudy]) -> Option<Recommendation> {
    let sizes: Vec<u32> = workloads.first()?.rows.iter().map(|row| row.block_size).collect();
    let alike = |study: &BlockSizeStudy| study.rows.iter().map(|row| row.block_size).eq(sizes.iter().copied());
    if !workloads.iter().all(alike) {
        return None;
    }
    let mut kept: Vec<usize> = (0..sizes.len()).filter(|&at| workloads.iter().all(|study| keeps(study, at))).collect();
    if kept.is_empty() {
        // Sizes that do not divide each other may each be the best at something.
        kept.extend((0..sizes.len()).min_by_key(|&at| sizes[at]));
    }
    let losses: Vec<Loss> = kept.iter().map(|&at| Loss::of(workloads, &kept, at)).collect();
    let fast = kept.iter().zip(&losses).filter(|(_, loss)| loss.is_noise).map(|(&at, _)| at);
    let fewest = || kept.iter().zip(&losses).min_by(|a, b| a.1.share.total_cmp(&b.1.share)).map(|(&at, _)| at);
    let at = fast.max_by_key(|&at| sizes[at]).or_else(fewest)?;

    let worst = workloads.iter().min_by(|a, b| a.rows[at].utilisation.total_cmp(&b.rows[at].utilisation))?;
    let list: Vec<String> = kept.iter().map(|&at| sizes[at].to_string()).collect();
    let mut reason =
        format!("{} keep within {:.0} points of the best utilisation", list.join(", "), 100.0 * UTILISATION_POINTS);
    if workloads.iter().any(|study| study.rows[at].prefix_hit_share.is_some()) {
        reason += &format!(" and {:.0} points of the best prefix hits", 100.0 * HIT_POINTS);
    }
    if workloads.len() > 1 {
        reason += " in every workload";
    }
    reason += &format!("; {} has {:.1} % at worst ({})", sizes[at], 100.0 * worst.rows[at].utilisation, worst.name);
    let place = kept.iter().position(|&kept| kept == at)?;
    reason += &match &losses[place] {
        Loss { measured: false, .. } => ", and is the largest of them; decode time was not measured".to_owned(),
        Loss { share, noise, is_noise: true, .. } => format!(
            ", and is the largest of them that decodes as fast as the fastest: {:+.1} % at worst, where {:.0} % are noise",
            100.0 * share,
            100.0 * noise
        ),
        Loss { share, .. } => format!(
            ", and loses least of them: its decode step takes {:+.1} % at worst against the fastest, for no size is \
             as fast as the fastest everywhere",
            100.0 * share
        ),
    };
    Some(Recommendation { block_size: sizes[at], reason })
}

fn keeps(study: &BlockSizeStudy, at: usize) -> bool {
    let best = |of: fn(&BlockSizeRow) -> f64| study.rows.iter().map(of).fold(0.0, f64::max);
    let hits = |row: &BlockSizeRow| row.prefix_hit_share.unwrap_or(0.0);
    let row = &study.rows[at];
    row.utilisation >= best(|row| row.utilisation) - UTILISATION_POINTS && hits(row) >= best(hits) - HIT_POINTS
}

/// What a size loses against the fastest of those that are kept, in the workload where it loses most.
#[derive(Clone, Copy, Debug)]
struct Loss {
    share: f64,
    noise: f64,
    is_noise: bool,
    measured: bool,
}

impl Loss {
    fn of(workloads: &[BlockSizeStudy], kept: &[usize], at: usize) -> Self {
        let mut loss = Self { share: 0.0, noise: DECODE_NOISE, is_noise: true, measured: false };
        for study in workloads {
            let decode = |&at: &usize| study.rows[at].decode;
            let fastest = kept.iter().filter_map(decode).min_by(|a, b| a.relative.total_cmp(&b.relative));
            let Some((own, fastest)) = decode(&at).zip(fastest) else { continue };
            let share = own.relative / fastest.relative - 1.0;
            let noise = DECODE_NOISE.max(own.noise).max(fastest.noise);
            loss.measured = true;
            loss.is_noise &= share <= noise;
            if share > loss.share {
                (loss.share, loss.noise) = (share, noise);
            }
        }
        loss
    }
}
