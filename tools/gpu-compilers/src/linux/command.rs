//! The command line, and the chips one after another or side by side.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, anyhow, bail};
use clap::Parser;
use wgpu_paged_attention::host::AtomicFile;
use wgpu_paged_attention::testkit::in_parallel;

use super::bounds::Bounds;
use super::chips::{CHIPS, Chip, Compiler};
use super::measure::{Task, measure};
use super::page;
use super::plant::Plant;
use super::row::ChipReport;
use super::texts::Texts;

/// Where setup.sh made the folder with the drivers.
const ROOT: &str = "PAGED_ATTENTION_GPU_ROOT";

/// Compiles the kernels with the GPU makers' compilers, prints what these tell, and compares it with the bounds.
#[derive(Debug, Parser)]
#[command(name = "gpu-compilers")]
struct Args {
    /// The folder with the drivers, as setup.sh made it; without it, what PAGED_ATTENTION_GPU_ROOT says.
    #[arg(long)]
    root: Option<PathBuf>,
    /// Only this chip; may be given several times.
    #[arg(long = "chip", value_parser = known_chip)]
    chips: Vec<&'static Chip>,
    /// Only the shapes that a change in the kernels reaches first.
    #[arg(long)]
    quick: bool,
    /// Another value in the profile of every chip, such as tile_rows=16 or lane_comm=workgroup64; may be given several
    /// times.
    #[arg(long = "plant", value_name = "NAME=VALUE")]
    plants: Vec<Plant>,
    /// Leave texts, SPIR-V, statistics and machine code in this folder, in one of its own for each chip.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Compare with the bounds of this file, and end with 1 where one is broken.
    #[arg(long, value_name = "FILE")]
    bounds: Option<PathBuf>,
    /// Write the file of bounds from what is measured now, instead of comparing.
    #[arg(long, requires = "bounds")]
    write_bounds: bool,
    /// Write the tables to this page, if all chips and shapes were compiled and nothing was planted.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Where a chip's report goes; this process runs inside the folder with the drivers.
    #[arg(long, hide = true)]
    report: Option<PathBuf>,
}

impl Args {
    /// Whether everything is compiled as the library would have it.
    fn is_whole(&self) -> bool {
        self.chips.is_empty() && !self.quick && self.plants.is_empty()
    }

    fn root(&self) -> anyhow::Result<PathBuf> {
        let given = self.root.clone().or_else(|| std::env::var_os(ROOT).map(PathBuf::from));
        given.with_context(|| format!("there is neither --root nor {ROOT}; tools/gpu-compilers/setup.sh sets it"))
    }
}

fn known_chip(name: &str) -> Result<&'static Chip, String> {
    Chip::named(name).ok_or_else(|| {
        let known: Vec<_> = CHIPS.iter().map(|chip| chip.name).collect();
        format!("`{name}` is none of {}", known.join(", "))
    })
}

pub fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.report {
        Some(report) => inside(&args, report).map(|()| true),
        None => outside(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn inside(args: &Args, report: &Path) -> anyhow::Result<()> {
    let [chip] = args.chips[..] else { bail!("--report takes one --chip") };
    let texts = report.with_extension("");
    fs::create_dir(&texts)?;
    let task = Task { chip, quick: args.quick, plants: args.plants.clone(), texts, dump: args.dump.is_some() };
    fs::write(report, serde_json::to_string(&measure(&task)?)?)?;
    Ok(())
}

/// Whether all bounds hold.
fn outside(args: &Args) -> anyhow::Result<bool> {
    let chips: Vec<_> = if args.chips.is_empty() { CHIPS.iter().collect() } else { args.chips.clone() };
    let (reports, readers) = run_all(args, &chips)?;
    let mut text = String::new();
    reports.iter().for_each(|report| page::chip(report, &mut text));
    println!("{text}");
    readers.iter().for_each(|line| println!("{line}"));
    if let Some(file) = &args.page
        && args.is_whole()
    {
        write_whole(file, &page::page(&reports, &readers))?;
    }
    let Some(file) = &args.bounds else { return Ok(true) };
    let known = fs::read_to_string(file).map_or_else(|_| Ok(Bounds::default()), |text| Bounds::read(&text))?;
    if args.write_bounds {
        write_whole(file, &known.updated(&reports).to_text())?;
        return Ok(true);
    }
    let broken: Vec<_> = reports.iter().flat_map(|report| known.broken(report)).collect();
    for line in &broken {
        eprintln!("{line}");
    }
    match broken.len() {
        0 => println!("all bounds of {} hold", file.display()),
        count => eprintln!("{count} bounds are broken; if that is wanted, write them anew with --write-bounds"),
    }
    Ok(broken.is_empty())
}

/// Replaces a file that is kept in the repository.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut file = AtomicFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    };
    write().with_context(|| path.display().to_string())
}

/// The reports of all chips, in their order, and who else read the texts.
fn run_all(args: &Args, chips: &[&'static Chip]) -> anyhow::Result<(Vec<ChipReport>, Vec<String>)> {
    let inside = format!("/tmp/gpu-compilers-{}", std::process::id());
    let root = args.root()?;
    let folder = root.join(&inside[1..]);
    fs::create_dir(&folder).with_context(|| format!("{} is no folder that setup.sh made", root.display()))?;
    fs::copy(std::env::current_exe()?, folder.join("program"))?;
    // NVIDIA's compiler takes longest, so it comes first.
    let (first, last): (Vec<&Chip>, Vec<&Chip>) =
        chips.iter().copied().partition(|chip| chip.compiler == Compiler::Nak);
    let done = Mutex::new(Vec::new());
    let ran = in_parallel(&[first, last].concat(), |chip| {
        let report = run(args, chip, &root, &inside).with_context(|| chip.name)?;
        done.lock().unwrap().push((chip.name, report));
        Ok(())
    });
    let mut done = done.into_inner().map_err(|_| anyhow!("a worker panicked"))?;
    done.sort_by_key(|(name, _)| chips.iter().position(|chip| chip.name == *name));
    let reports: Vec<_> = done.into_iter().map(|(_, report)| report).collect();
    let said = ran.and_then(|()| Ok((reports, judge_texts(&folder, chips)?)));
    fs::remove_dir_all(&folder)?;
    said
}

/// What tint and DXC say of the texts of all chips.
fn judge_texts(folder: &Path, chips: &[&'static Chip]) -> anyhow::Result<Vec<String>> {
    let mut texts = Texts::default();
    for chip in chips {
        texts.add(&folder.join(chip.name))?;
    }
    texts.judge()
}

fn run(args: &Args, chip: &'static Chip, root: &Path, inside: &str) -> anyhow::Result<ChipReport> {
    let report = format!("{inside}/{}.json", chip.name);
    let mut command = chip.command(root, &format!("{inside}/program"));
    command.args(["--chip", chip.name, "--report", &report]);
    if args.quick {
        command.arg("--quick");
    }
    for plant in &args.plants {
        command.args(["--plant", &plant.to_string()]);
    }
    if args.dump.is_some() {
        command.args(["--dump", inside]);
    }
    let status = command.status().context("chroot cannot be run")?;
    if let Some(folder) = &args.dump {
        copy_files(&root.join(&report[1..]).with_extension(""), &folder.join(chip.name))?;
    }
    if !status.success() {
        bail!("the compiler ended with {status}; see above");
    }
    Ok(serde_json::from_str(&fs::read_to_string(root.join(&report[1..]))?)?)
}

fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
