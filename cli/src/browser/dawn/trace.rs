//! What the library asks of a device, as a page that asks it of the browser's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wgpu_paged_attention::testkit::{Gpu, browser_wgsl};

use crate::browser::Browser;

const REPLAY: &str = include_str!("replay.js");

/// Dawn computes with Chromium's own SwiftShader: the same on every machine.
const DAWN: [&str; 3] = ["--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader"];

/// Calls to wgpu, recorded.
#[derive(Debug, Serialize)]
pub struct Trace {
    pub ron: String,
    /// Texts as such, other files as lists of bytes.
    pub files: BTreeMap<String, Value>,
    pub subgroups: bool,
    /// Whether pipelines are made, or only their texts compiled.
    pub pipelines: bool,
}

/// What the browser's GPU made of a trace.
#[derive(Debug, Deserialize)]
pub struct Replayed {
    pub adapter: String,
    pub modules: u32,
    pub pipelines: u32,
    /// In the browser's words.
    pub errors: Vec<String>,
    /// The buffers that were read back, in order.
    pub read: Vec<Vec<u8>>,
}

impl Trace {
    /// The calls of `work`, whose device has subgroups or none.
    pub fn of(browser: &Browser, name: &str, subgroups: bool, work: impl FnOnce(&Gpu)) -> Self {
        let directory = browser.directory.join(format!("{name}-trace"));
        fs::create_dir_all(&directory).expect("the target directory can be written");
        work(&Gpu::recorder(&directory, subgroups));
        let ron = fs::read_to_string(directory.join("trace.ron")).expect("wgpu wrote it");
        let files = fs::read_dir(&directory).expect("wgpu wrote there").map(|entry| entry.expect("it is there").path());
        let files =
            files.filter(|path: &PathBuf| !path.ends_with("trace.ron")).map(|path| (file_name(&path), content(&path)));
        Self { ron, files: files.collect(), subgroups, pipelines: true }
    }

    /// The kernels' texts, to plant faults in.
    pub fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        self.files.values_mut().filter_map(|file| match file {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    pub fn replay(&self, browser: &Browser, name: &str) -> Replayed {
        // Nothing in a script may look like its end.
        let trace = serde_json::to_string(self).expect("texts and numbers").replace("</", "<\\/");
        let page = format!(
            "<!DOCTYPE html><html><head><meta charset=\"utf-8\"></head><body><pre id=\"answer\"></pre>\
             <script>const TRACE = {trace};\n{REPLAY}</script></body></html>"
        );
        let replayed: Replayed = browser.answer(name, &DAWN, &browser.write(name, &page));
        assert!(replayed.adapter.contains("swiftshader"), "{name}: the browser has another GPU: {}", replayed.adapter);
        replayed
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn content(path: &PathBuf) -> Value {
    let bytes = fs::read(path).expect("wgpu wrote it");
    if path.extension().is_some_and(|extension| extension == "wgsl") {
        Value::String(browser_wgsl(&String::from_utf8(bytes).expect("a text")))
    } else {
        bytes.into()
    }
}
