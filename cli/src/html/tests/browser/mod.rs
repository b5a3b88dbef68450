//! Pages in a real browser: that every plot and table is there and has a size, that nothing comes from the network, that
//! a phone need not scroll sideways, and that dark is dark.
//!
//! Needs Chromium; `PAGED_ATTENTION_REQUIRE_BROWSER=1` makes its absence a failure.

mod look;
mod reports;

use crate::browser::Browser;
use crate::html::Page;
use look::Seen;

const DESKTOP: u32 = 1280;
const PHONE: u32 = 390;

/// What the page should show, by what it is made of.
fn expected(page: &Page) -> (Vec<String>, Vec<String>) {
    let plots: Vec<String> = page.plots().map(|plot| plot.id.clone()).collect();
    let of_plots = plots.iter().map(|id| format!("{id}-data"));
    let tables = page.shown().flat_map(|section| &section.tables).map(|table| table.id.clone());
    (plots.clone(), of_plots.chain(tables).collect())
}

/// Says what is missing or wrong, so that a test can also ask for it.
fn complaints(page: &Page, seen: &Seen) -> Vec<String> {
    let (plots, tables) = expected(page);
    let mut complaints = Vec::new();
    for id in plots {
        match seen.plots.iter().find(|plot| plot.id == id) {
            Some(plot)
                if plot.width >= 250.0 && plot.height >= 150.0 && !plot.name.is_empty() && plot.cut.is_empty() => {}
            found => complaints.push(format!("plot {id}: {found:?}")),
        }
    }
    for id in tables {
        match seen.tables.iter().find(|table| table.id == id) {
            Some(table) if table.rows > 0 && table.width > 0.0 && table.captioned => {}
            found => complaints.push(format!("table {id}: {found:?}")),
        }
    }
    if seen.scroll_width > seen.client_width {
        complaints.push(format!("{} pixels wide in a window of {}", seen.scroll_width, seen.client_width));
    }
    if seen.headings.first() != Some(&1) || seen.headings.windows(2).any(|pair| pair[1] > pair[0] + 1) {
        complaints.push(format!("headings out of order: {:?}", seen.headings));
    }
    complaints
}

#[test]
fn every_plot_and_table_is_there_on_desktop_and_phone() {
    let Some(browser) = Browser::find("every_plot_and_table_is_there_on_desktop_and_phone") else { return };
    for (name, page) in reports::pages() {
        let html = page.to_html().expect("the page can be written");
        let (plots, tables) = expected(&page);
        assert!(plots.len() >= 2 && tables.len() > plots.len(), "{name}: {plots:?} {tables:?}");
        for width in [DESKTOP, PHONE] {
            let seen = browser.look(&format!("{name}-{width}"), &html, width, false);
            assert_eq!(complaints(&page, &seen), [""; 0], "{name}, {width} pixels");
            // Less the scroll bar.
            assert!((f64::from(width) - seen.client_width) < 20.0, "{name}: {}", seen.client_width);
        }
        // To be looked at by people.
        for (width, dark) in [(DESKTOP, false), (PHONE, false), (DESKTOP, true)] {
            browser.screenshot(&format!("{name}-{width}{}", if dark { "-dark" } else { "" }), &html, width, dark);
        }
    }
}

#[test]
fn a_missing_plot_and_a_wide_page_are_noticed() {
    let Some(browser) = Browser::find("a_missing_plot_and_a_wide_page_are_noticed") else { return };
    let page = reports::bench();
    let html = page.to_html().expect("the page can be written");
    let id = &page.plots().next().expect("it has plots").id;
    let hidden = html.replacen(&format!("<svg id=\"{id}\""), &format!("<svg id=\"{id}\" style=\"display: none\""), 1);
    let without = html.replacen(&format!("<svg id=\"{id}\""), "<svg id=\"other\"", 1);
    for (name, html) in [("hidden", hidden), ("without", without)] {
        let found = complaints(&page, &browser.look(name, &html, PHONE, false));
        assert!(found.len() == 1 && found[0].contains(&format!("plot {id}")), "{name}: {found:?}");
    }
    let wide = html.replacen("<main>", "<main><div style=\"width: 600px\">wide</div>", 1);
    let found = complaints(&page, &browser.look("wide", &wide, PHONE, false));
    assert!(found.len() == 1 && found[0].contains("pixels wide"), "{found:?}");
}

#[test]
fn nothing_is_requested_from_the_network() {
    let Some(browser) = Browser::find("nothing_is_requested_from_the_network") else { return };
    for (name, page) in reports::pages() {
        let html = page.to_html().expect("the page can be written");
        assert_eq!(browser.requests(name, &html), [""; 0], "{name}");
    }
    let html = reports::bench().to_html().expect("the page can be written");
    let picture = html.replacen("<main>", "<main><img src=\"http://planted.invalid/picture.png\">", 1);
    assert_eq!(browser.requests("planted", &picture), ["http://planted.invalid/picture.png"]);
}

#[test]
fn dark_is_dark_and_light_is_light() {
    let Some(browser) = Browser::find("dark_is_dark_and_light_is_light") else { return };
    let html = reports::bench().to_html().expect("the page can be written");
    let [light, dark] = [false, true].map(|dark| browser.look(&format!("dark-{dark}"), &html, DESKTOP, dark));
    for (what, light, dark) in
        [("background", &light.background, &dark.background), ("plot", &light.plot_background, &dark.plot_background)]
    {
        assert!(brightness(light) > 230.0 && brightness(dark) < 50.0, "{what}: {light} and {dark}");
    }
    for (what, light, dark) in
        [("text", &light.color, &dark.color), ("text of plots", &light.plot_color, &dark.plot_color)]
    {
        assert!(brightness(light) < 60.0 && brightness(dark) > 200.0, "{what}: {light} and {dark}");
    }
}

/// Mean of red, green and blue in `rgb(r, g, b)`.
fn brightness(color: &str) -> f64 {
    let digits = |c: char| !c.is_ascii_digit();
    let parts: Vec<f64> = color.split(digits).filter_map(|part| part.parse().ok()).collect();
    assert_eq!(parts.len(), 3, "{color}");
    parts.iter().sum::<f64>() / 3.0
}
