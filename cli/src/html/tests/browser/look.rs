//! What a browser makes of a report.

use std::fs;

use serde::Deserialize;
use serde_json::Value;

use crate::browser::Browser;

/// The browser's clock runs ahead: a page that does nothing more is done.
const HASTE: &str = "--virtual-time-budget=5000";

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
  document.getElementById("answer").textContent = JSON.stringify(seen);
});
"#;

impl Browser {
    /// Shows a page in a frame of this width, and measures it.
    pub fn look(&self, name: &str, html: &str, width: u32, dark: bool) -> Seen {
        let escaped = html.replace('&', "&amp;").replace('"', "&quot;");
        let around = format!(
            "<!DOCTYPE html><html><head><meta charset=\"utf-8\"><style>:root {{ color-scheme: light dark; }} \
             iframe {{ border: 0; width: {width}px; height: 3000px; }} \
             </style></head><body><pre id=\"answer\"></pre><iframe id=\"page\"></iframe>\
             <template id=\"source\" data-html=\"{escaped}\"></template><script>{LOOK}\
             frame.srcdoc = document.getElementById(\"source\").dataset.html;</script></body></html>"
        );
        let file = self.write(&format!("{name}-around"), &around);
        self.answer(name, &[HASTE, &scheme(dark)], &file)
    }

    /// Addresses that a page asked the network for.
    pub fn requests(&self, name: &str, html: &str) -> Vec<String> {
        let (file, log) = (self.write(name, html), self.directory.join(format!("{name}.netlog.json")));
        self.run(&["--dump-dom", HASTE, &format!("--log-net-log={}", log.display())], &file);
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
        self.run(
            &[HASTE, &format!("--screenshot={}", picture.display()), &size, &scheme(dark), "--hide-scrollbars"],
            &file,
        );
        let bytes = fs::read(&picture).expect("the browser takes a picture");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{name}: {} bytes", bytes.len());
    }
}

fn scheme(dark: bool) -> String {
    format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 })
}
