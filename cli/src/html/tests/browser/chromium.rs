//! Chromium without a window.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use wgpu_paged_attention::testkit::skip;

const REQUIRE_BROWSER: &str = "PAGED_ATTENTION_REQUIRE_BROWSER";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const LIMIT: Duration = Duration::from_secs(60);

/// What a browser made of a page.
#[derive(Debug, Deserialize)]
pub struct Seen {
    pub plots: Vec<SeenPlot>,
    pub tables: Vec<SeenTable>,
    pub headings: Vec<u32>,
    pub scroll_width: f64,
    pub client_width: f64,
    pub background: String,
    pub color: String,
    pub plot_background: String,
    pub plot_color: String,
}

/// A plot on the screen.
#[derive(Debug, Deserialize)]
pub struct SeenPlot {
    pub id: String,
    pub width: f64,
    pub height: f64,
    /// The title that a screen reader says.
    pub name: String,
    /// Labels that reach out of the plot.
    pub cut: Vec<String>,
}

/// A table on the screen.
#[derive(Debug, Deserialize)]
pub struct SeenTable {
    pub id: String,
    pub rows: usize,
    pub width: f64,
    pub captioned: bool,
}

/// Opens everything that can be opened, then measures. It runs in a page around the one that is tested.
const LOOK: &str = r#"
const frame = document.getElementById("page");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  page.querySelectorAll("details").forEach((details) => { details.open = true; });
  const style = (element) => view.getComputedStyle(element);
  const box = (element) => element.getBoundingClientRect();
  const plots = [...page.querySelectorAll("svg[role=img]")];
  const seen = {
    plots: plots.map((svg) => ({
      id: svg.id, width: box(svg).width, height: box(svg).height,
      name: svg.getAttribute("aria-labelledby").split(" ").map((id) => page.getElementById(id).textContent).join(" "),
      cut: [...svg.querySelectorAll("text")].filter((text) => {
        // A line is higher than its letters, and a small picture rounds them up; a digit is wider than this.
        const at = text.getBBox(), room = svg.viewBox.baseVal, slack = 3;
        return at.x < -slack || at.x + at.width > room.width + slack
          || at.y < -slack || at.y + at.height > room.height + slack;
      }).map((text) => text.textContent.trim()),
    })),
    tables: [...page.querySelectorAll("table")].map((table) => ({
      id: table.id, rows: table.tBodies[0].rows.length, width: box(table).width, captioned: !!table.caption,
    })),
    headings: [...page.querySelectorAll("h1, h2, h3, h4")].map((heading) => Number(heading.tagName[1])),
    scroll_width: page.documentElement.scrollWidth,
    client_width: page.documentElement.clientWidth,
    background: style(page.body).backgroundColor,
    color: style(page.body).color,
    plot_background: style(plots[0]).backgroundColor,
    plot_color: style(plots[0].querySelector("text")).fill,
  };
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
"#;

pub struct Browser {
    program: PathBuf,
    directory: PathBuf,
}

impl Browser {
    /// The browser of this machine, or `None` after the reason has been printed. `test` is the name of the test.
    pub fn find(test: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = NAMES.iter().flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)));
        let Some(program) = found.into_iter().find(|file| file.is_file()) else {
            let reason = format!("none of {NAMES:?} is in the PATH; tools/setup.sh --browser installs one");
            skip(Some(REQUIRE_BROWSER), &reason);
            return None;
        };
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/page").join(test);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("the target directory can be written");
        // Chromium opens no file whose path has `..` in it.
        let directory = fs::canonicalize(directory).expect("the directory has just been made");
        Some(Self { program, directory })
    }

    /// Shows a page in a frame of this width, and measures it.
    pub fn look(&self, name: &str, html: &str, width: u32, dark: bool) -> Seen {
        let escaped = html.replace('&', "&amp;").replace('"', "&quot;");
        let around = format!(
            "<!DOCTYPE html><html><head><meta charset=\"utf-8\"><style>:root {{ color-scheme: light dark; }} \
             iframe {{ border: 0; width: {width}px; height: 3000px; }} \
             </style></head><body><pre id=\"seen\"></pre><iframe id=\"page\"></iframe>\
             <template id=\"source\" data-html=\"{escaped}\"></template><script>{LOOK}\
             frame.srcdoc = document.getElementById(\"source\").dataset.html;</script></body></html>"
        );
        let file = self.write(&format!("{name}-around"), &around);
        let dom = self.run(&["--dump-dom", &scheme(dark)], &file);
        let seen = dom.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
        let seen = seen.unwrap_or_else(|| panic!("{name}: nothing was measured: {dom}")).0;
        let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{name}: {error}: {seen}"))
    }

    /// Addresses that a page asked the network for.
    pub fn requests(&self, name: &str, html: &str) -> Vec<String> {
        let (file, log) = (self.write(name, html), self.directory.join(format!("{name}.netlog.json")));
        self.run(&["--dump-dom", &format!("--log-net-log={}", log.display())], &file);
        let text = fs::read_to_string(&log).expect("the browser writes what it did");
        let log: Value = serde_json::from_str(&text).expect("the log is JSON");
        let started = &log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"];
        assert!(started.is_u64(), "the log names its events otherwise");
        let events = log["events"].as_array().expect("a list of events");
        let jobs = events.iter().filter(|event| event["type"] == *started);
        // What the browser asks for on its own account has no page behind it.
        let of_page = jobs.filter(|job| job["params"]["initiator"].as_str().is_some_and(|by| by != "not an origin"));
        let mut urls: Vec<_> = of_page.filter_map(|job| Some(job["params"]["url"].as_str()?.to_owned())).collect();
        urls.retain(|url| !url.starts_with("file:") && !url.starts_with("data:"));
        urls.dedup();
        urls
    }

    /// A picture of the whole page, beside the page.
    pub fn screenshot(&self, name: &str, html: &str, width: u32, dark: bool) {
        let (file, picture) = (self.write(name, html), self.directory.join(format!("{name}.png")));
        let height = if width < 500 { 2000 } else { 2600 };
        let size = format!("--window-size={width},{height}");
        self.run(&[&format!("--screenshot={}", picture.display()), &size, &scheme(dark), "--hide-scrollbars"], &file);
        let bytes = fs::read(&picture).expect("the browser takes a picture");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{name}: {} bytes", bytes.len());
    }

    fn write(&self, name: &str, html: &str) -> PathBuf {
        let file = self.directory.join(format!("{name}.html"));
        fs::write(&file, html).expect("the target directory can be written");
        file
    }

    fn run(&self, options: &[&str], file: &Path) -> String {
        let profile = self.directory.join("profile");
        let output = self.directory.join("stdout");
        let mut child = Command::new(&self.program)
            // No sandbox as root, as in a container; the pages are our own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(options)
            .arg(format!("file://{}", file.display()))
            .stdout(fs::File::create(&output).expect("the target directory can be written"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let started = Instant::now();
        while child.try_wait().expect("the browser can be waited for").is_none() {
            if started.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the browser has not ended after {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::read_to_string(&output).expect("the browser writes text")
    }
}

fn scheme(dark: bool) -> String {
    format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 })
}
