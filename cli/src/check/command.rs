//! `paged-attention check`: the kernels against the oracle, in words.

use std::fmt::Write;

use clap::Args;

use crate::bench::report::render_banner;
use crate::check::{self, CheckOptions, CheckReport};

use crate::common::adapter::AdapterArgs;
use crate::common::files::TableArgs;
use crate::common::output::{Progress, print};
use crate::common::status::{Failure, Status};

/// Examples, below the options.
pub const HELP: &str = "\
Runs every storage format, paged and contiguous, with and without subgroups, on steps and heads that are easy to get
wrong: decoding, prompts, mixed and speculative steps, shared prefixes, split rows, with options of attention drawn by the
seed. Plants faults that must be noticed. On a software adapter, whose driver compiles slowly, the first full check takes
minutes; later ones find its cache.

Examples:
  paged-attention check
  paged-attention check --quick --json check.json
  paged-attention check --adapter nvidia --require-gpu";

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Few scenarios: seconds, even on a CPU.
    #[arg(long)]
    pub quick: bool,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Files; the CSV has a row for every form of the kernels.
    #[command(flatten)]
    pub tables: TableArgs,
}

/// Failures that are printed in full; the JSON has all of them.
const SHOWN: usize = 5;

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare()?;
    let gpu = args.adapter.open()?;
    let options = CheckOptions { quick: args.quick, seed: args.seed };
    let (bar, mut done) = (Progress::new(), 0);
    let report = check::run(&gpu, &options, &mut |progress| match progress {
        check::Progress::Started { total } => bar.start(total),
        check::Progress::Done { label } => {
            done += 1;
            bar.at(done, label);
        }
    });
    bar.finish();
    print(&render(&report))?;
    files.write_json(|| report.to_json())?;
    files.write_csv(|| report.to_csv())?;
    Ok(Status::of_check(&report))
}

fn render(report: &CheckReport) -> String {
    let mut text = render_banner(&report.adapter);
    // Writing to a string cannot fail, here and below.
    for group in &report.groups {
        let name = format!("{} {} {}", group.kv_dtype, group.mode, group.exchange);
        let failed = match group.failures.len() {
            0 => "ok".to_owned(),
            failed => format!("{failed} WRONG"),
        };
        let _ =
            write!(text, "\n{name:<28} {:>3} scenarios  worst error {:.1e}  {failed}", group.scenes, group.worst_error);
    }
    let noticed = report.self_test.iter().filter(|planted| planted.noticed).count();
    let _ = write!(text, "\nplanted faults noticed: {noticed} of {} ({:.1} s)", report.self_test.len(), report.seconds);
    for planted in report.self_test.iter().filter(|planted| !planted.noticed) {
        let _ = write!(text, "\n  the check is blind: {} in {}: {}", planted.fault, planted.kernel, planted.answer);
    }
    for failure in report.failures().take(SHOWN) {
        let _ = write!(text, "\nWRONG {}: {}", failure.kernel, failure.scene);
        let _ = write!(text, "\n  lengths {:?}\n  {}", failure.seq_lens, failure.error);
    }
    let failed = report.failures().count();
    if failed > SHOWN {
        let _ = write!(text, "\n{} more; --json has all of them", failed - SHOWN);
    }
    let verdict = match (report.passed(), failed) {
        (true, _) => "passed: every form of the kernels agrees with the oracle".to_owned(),
        (false, 0) => "FAILED: the check cannot tell right from wrong on this adapter".to_owned(),
        (false, failed) => format!(
            "FAILED: {failed} scenarios disagree with the oracle; --seed {} shows them again, and a newer driver may be \
             the remedy",
            report.seed
        ),
    };
    let _ = write!(text, "\n{verdict}");
    text
}
