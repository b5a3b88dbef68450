//! `paged-attention compare`: two reports in, a table out.

use std::path::PathBuf;

use clap::Args;

use super::{Comparison, Recorded};
use crate::common::{Failure, Status, TableArgs};

pub const HELP: &str = "\
Each case of a benchmark has samples: two medians differ if their 95 % intervals do not overlap, made a little wider for what
changes from one run to the next; so it is with decode times of block sizes, but for the widening. Replays with the step clock have no noise, and any difference is exact; those of another clock differ
beyond its error. Cases that are wrong or failed are shown as such, never as fast.

Examples:
  paged-attention bench --json before.json
  paged-attention compare before.json after.json
  paged-attention compare before.json after.json --fail-on-slower 5 --csv difference.csv";

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A report that --json has written.
    #[arg(value_name = "A.json")]
    pub a: PathBuf,
    /// Another one, of the same command.
    #[arg(value_name = "B.json")]
    pub b: PathBuf,
    /// End with status 1 if a case of B has failed, or is slower or worse than in A by more than this, beyond the noise.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_on_slower: Option<f64>,
    #[command(flatten)]
    pub tables: TableArgs,
}

fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| *value >= 0.0 && value.is_finite());
    value.ok_or_else(|| "give a number of percent, 0 or more".to_owned())
}

pub fn run(args: &CompareArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare(&[&Some(args.a.clone()), &Some(args.b.clone())])?;
    let usage = |error: crate::compare::CompareError| Failure::new(Status::Usage, error.to_string());
    let (a, b) = (Recorded::read(&args.a).map_err(usage)?, Recorded::read(&args.b).map_err(usage)?);
    let comparison = Comparison::of(&a, &b).map_err(usage)?;
    files.deliver(&comparison)?;
    let Some(percent) = args.fail_on_slower else { return Ok(Status::Ok) };
    let slower = comparison.slower_than(percent / 100.0).count();
    if slower == 0 {
        return Ok(Status::Ok);
    }
    eprintln!("error: {slower} cases of B have failed, or are slower or worse by more than {percent} %");
    Ok(Status::Failed)
}
