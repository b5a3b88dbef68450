//! Options that have no effect beside others, of every command in one table. Clap itself refuses what excludes or requires
//! one certain option (`--skip-bad` without `--trace`); what depends on values, or on one of several, is here.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::common::{Failure, Status};

struct Given<'a>(&'a ArgMatches);

impl Given<'_> {
    fn has(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    fn any(&self, ids: &[&str]) -> bool {
        ids.iter().any(|id| self.has(id))
    }

    fn is(&self, id: &str, value: &str) -> bool {
        self.values(id).any(|given| given == value)
    }

    fn values(&self, id: &str) -> impl Iterator<Item = &str> {
        self.0.get_raw(id).into_iter().flatten().filter_map(|value| value.to_str()).flat_map(|value| value.split(','))
    }

    fn measures(&self, ops: &[&str]) -> bool {
        !self.has("op") || ops.iter().any(|op| self.is("op", op))
    }

    fn is_calibrated(&self) -> bool {
        self.is("clock", "calibrated") || (self.has("calibration") && !self.has("clock"))
    }

    fn uses_adapter(&self) -> bool {
        self.has("execute") || (self.is_calibrated() && !self.has("calibration"))
    }
}

struct Need {
    command: &'static str,
    /// By their ids, which are their names with `_` for `-`.
    options: &'static [&'static str],
    useless: fn(&Given<'_>) -> bool,
    why: &'static str,
    #[cfg(test)]
    beside: &'static str,
}

macro_rules! needs {
    ($($command:literal $options:expr, $useless:expr, $why:literal, $beside:literal;)*) => {
        &[$(Need { command: $command, options: &$options, useless: $useless, why: $why, #[cfg(test)] beside: $beside }),*]
    };
}

const ATTENTION: [&str; 3] = ["decode", "prefill", "mixed"];

#[rustfmt::skip]
const NEEDS: &[Need] = needs! {
    "bench" ["window", "soft_cap", "alibi", "sinks", "non_causal", "lse", "io", "queries", "shared_prefix"],
        |given| !given.measures(&ATTENTION), "on --op append; give --op decode, prefill or mixed as well", "--op append";
    "bench" ["queries"], |given| !given.measures(&["decode", "mixed"]),
        "on --op prefill, where all tokens are queries; give --op decode or mixed as well", "--op prefill,append";
    "bench" ["non_causal"], |given| !given.measures(&["prefill", "mixed"]) && !given.values("queries").any(|queries| queries != "1"),
        "on one query at the end of its sequence; give --queries, or --op prefill or mixed", "--op decode";
    "bench" ["time_budget"], |given| given.has("samples"), "beside --samples, which says how many runs there are", "--samples 5";
    "bench" ["quick"], |given| given.has("samples") && given.any(&["batch", "context", "case", "lens"]),
        "where --samples and the sizes are given", "--samples 5 --batch 1";
    // Clap forgets that an option requires --trace where --workload excludes it.
    "bench" ["skip_bad"], |given| !given.has("trace"), "without --trace", "--workload sharegpt";
    "plan" ["skip_bad"], |given| !given.has("trace"), "without --trace", "--workload sharegpt";
    "blocks" ["skip_bad", "tokens_per_id"], |given| !given.has("trace"), "without --trace", "--workload sharegpt";
    "replay" ["skip_bad", "tokens_per_id", "time_unit"], |given| !given.has("trace"), "without --trace", "--workload sharegpt";
    "plan" ["heads"], |given| !given.has("layers"), "without --layers", "";
    "replay" ["heads"], |given| !given.has("layers"), "without --layers", "";
    "plan" ["requests", "seed"], |given| !given.has("workload"), "without --workload", "";
    "blocks" ["kv_dtype"], |given| given.has("no_measure"), "beside --no-measure", "--no-measure";
    "blocks" ["model", "config", "heads"], |given| given.has("no_measure") && given.has("max_len"),
        "beside --no-measure and --max-len", "--no-measure --max-len 512";
    "blocks" ["seed"], |given| given.has("no_measure") && given.has("trace"), "beside --no-measure and --trace",
        "--no-measure --trace log.csv";
    "replay" ["seed"], |given| given.has("trace") && !given.uses_adapter(),
        "on a log, unless --clock calibrated or --execute draws something", "--trace log.csv";
    "replay" ["adapter", "backend", "require_gpu"], |given| !given.uses_adapter(), "without --clock calibrated or --execute", "";
    "replay" ["step_ms"], |given| given.is_calibrated(), "on a calibrated clock", "--clock calibrated";
    "replay" ["calibration"], |given| given.has("clock") && given.is("clock", "step"), "with --clock step; give --clock calibrated",
        "--clock step";
    "replay" ["save_calibration", "attention_only"], |given| !given.is_calibrated(), "without --clock calibrated", "";
    "replay" ["no_prefix_cache"], |given| !given.has("trace"), "without --trace, for drawn requests share no prefixes", "";
    "replay" ["no_prefix_cache", "tokens_per_id"], |given| given.is("only", "contiguous"),
        "with --only contiguous, which shares no prefixes", "--only contiguous --trace log.csv";
    "replay" ["tokens_per_id"], |given| given.has("no_prefix_cache"), "beside --no-prefix-cache",
        "--no-prefix-cache --trace log.csv";
    "replay" ["block_size"], |given| given.is("only", "contiguous") && !given.is_calibrated(),
        "with --only contiguous, which has no blocks", "--only contiguous";
    "replay" ["execute"], |given| given.is("only", "contiguous"),
        "with --only contiguous, for it runs the steps of the paged cache; leave out --only contiguous", "--only contiguous";
};

pub fn check(matches: &ArgMatches) -> Result<(), Failure> {
    let Some((command, matches)) = matches.subcommand() else { return Ok(()) };
    let given = Given(matches);
    for need in NEEDS.iter().filter(|need| need.command == command) {
        for option in need.options.iter().filter(|option| given.has(option)) {
            if (need.useless)(&given) {
                return Err(no_effect(option, need.why));
            }
        }
    }
    Ok(())
}

/// The refusal of an option that does nothing; `option` is its id.
pub fn no_effect(option: &str, why: &str) -> Failure {
    Failure::new(Status::Usage, format!("--{} has no effect {why}", option.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn refusal(words: &str) -> Option<String> {
        let words = std::iter::once("paged-attention").chain(words.split_whitespace());
        let matches = Cli::command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{error}"));
        check(&matches).err().map(|failure| failure.message)
    }

    /// An option with a value that it takes.
    fn with_value(option: &str) -> String {
        let name = format!("--{}", option.replace('_', "-"));
        let value = match option {
            "model" => "qwen2-7b",
            "heads" => "4 --head-dim 64",
            "io" | "kv_dtype" => "f16",
            "time_unit" => "ms",
            "backend" => "vulkan",
            "config" | "calibration" | "save_calibration" => "file.json",
            "alibi" | "sinks" | "non_causal" | "lse" | "quick" | "require_gpu" | "attention_only"
            | "no_prefix_cache" | "execute" | "skip_bad" => "",
            _ => "7",
        };
        format!("{name} {value}")
    }

    #[test]
    fn x16_every_option_of_the_table_is_refused_by_name_where_it_has_no_effect() {
        for need in NEEDS {
            for option in need.options {
                let words = format!("{} {} {}", need.command, need.beside, with_value(option));
                let text = refusal(&words).unwrap_or_else(|| panic!("{words}: taken"));
                let name = option.replace('_', "-");
                assert_eq!(text, format!("--{name} has no effect {}", need.why), "{words}");
                // Without it, the rest is in order.
                assert_eq!(refusal(&format!("{} {}", need.command, need.beside)), None, "{}", need.beside);
            }
        }
    }

    #[test]
    fn x16_every_option_of_the_table_is_one_of_its_command() {
        for need in NEEDS {
            let program = Cli::command();
            let command = program.find_subcommand(need.command).expect(need.command);
            for option in need.options {
                assert!(command.get_arguments().any(|arg| arg.get_id() == option), "{} {option}", need.command);
            }
        }
    }

    #[test]
    fn x16_options_that_have_an_effect_are_taken() {
        for words in [
            "bench --window 5 --soft-cap 3 --queries 2",
            "bench --op append,decode --window 5 --lse --queries 4 --non-causal",
            "bench --op mixed --non-causal --queries 2",
            "bench --samples 5 --quick",
            "bench --time-budget 5 --quick --batch 2",
            "plan --workload sharegpt --requests 5 --seed 3",
            "blocks --no-measure --model qwen2-7b --seed 3",
            "blocks --kv-dtype int8 --trace log.csv --seed 3 --tokens-per-id 16",
            "replay --requests 5 --seed 3 --step-ms 5 --clock step",
            "replay --trace log.csv --execute --seed 3 --adapter card",
            "replay --clock calibrated --require-gpu --save-calibration a.json --attention-only",
            "replay --calibration a.json --attention-only",
            "replay --trace log.csv --no-prefix-cache --only paged --block-size 8",
        ] {
            assert_eq!(refusal(words), None, "{words}");
        }
    }
}
