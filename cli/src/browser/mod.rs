//! Chromium without a window, for tests.

mod dawn;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use wgpu_paged_attention::testkit::skip;

const REQUIRE_BROWSER: &str = "PAGED_ATTENTION_REQUIRE_BROWSER";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const LIMIT: Duration = Duration::from_secs(120);

pub struct Browser {
    program: PathBuf,
    /// Where the test may write.
    pub directory: PathBuf,
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

    /// What a page writes into its element `answer`, as JSON.
    pub fn answer<T: DeserializeOwned>(&self, name: &str, options: &[&str], file: &Path) -> T {
        let dom = self.run(&[options, &["--dump-dom"]].concat(), file);
        let answer = dom.split_once("<pre id=\"answer\">").and_then(|(_, rest)| rest.split_once("</pre>"));
        let answer = answer.unwrap_or_else(|| panic!("{name}: the page answers nothing: {dom}")).0;
        let answer = answer.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{name}: {error}: {answer}"))
    }

    pub fn write(&self, name: &str, html: &str) -> PathBuf {
        let file = self.directory.join(format!("{name}.html"));
        fs::write(&file, html).expect("the target directory can be written");
        file
    }

    pub fn run(&self, options: &[&str], file: &Path) -> String {
        let profile = self.directory.join("profile");
        let output = self.directory.join("stdout");
        let mut child = Command::new(&self.program)
            // No sandbox as root, as in a container; the pages are our own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND"])
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
