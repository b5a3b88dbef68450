use super::*;

fn plot() -> Plot {
    Plot {
        id: "rate".into(),
        title: "Rate <of> \"m\" & n".into(),
        x: Axis::log2("context, tokens"),
        y: Axis::linear("GB/s"),
        series: vec![
            Series { name: "paged".into(), points: vec![(256.0, 1.5), (1024.0, 3.0), (4096.0, 2.5)] },
            Series { name: "contiguous".into(), points: vec![(1024.0, 4.0)] },
        ],
        levels: vec![Level { name: "reading at best".into(), value: 5.0 }],
    }
}

#[test]
fn the_description_has_the_numbers() {
    assert_eq!(
        plot().description(),
        "GB/s against context, tokens. paged: 3 points, 1.5 at 256 to 2.5 at 4,096; least 1.5, most 3. \
         contiguous: 4 at 1,024. reading at best: 5."
    );
}

#[test]
fn the_table_has_a_row_for_each_x_and_a_column_for_each_line() {
    let table = plot().table();
    assert_eq!(table.id, "rate-data");
    assert_eq!(table.header, ["context, tokens", "paged", "contiguous", "reading at best"]);
    assert_eq!(
        table.rows,
        [["256", "1.5", "–", "5"], ["1,024", "3", "4", "5"], ["4,096", "2.5", "–", "5"]]
            .map(|row| row.map(String::from))
    );
}

#[test]
fn the_svg_is_named_described_and_without_fixed_colours() {
    let (inline, file) = (plot().to_svg().unwrap(), plot().to_svg_file().unwrap());
    for svg in [&inline, &file] {
        assert!(svg.contains("role=\"img\" aria-labelledby=\"rate-title rate-desc\""), "{svg}");
        assert!(svg.contains("<title id=\"rate-title\">Rate &lt;of&gt; \"m\" &amp; n</title>"), "{svg}");
        assert!(svg.contains(">GB/s against context, tokens. paged: 3 points"), "{svg}");
        for text in ["paged", "contiguous", "reading at best", "context, tokens", "GB/s", "4,096"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}: {svg}");
        }
        // Every colour has a class beside it; text of the style sheet aside.
        let drawing = svg.split("</style>").last().unwrap();
        for (attribute, class) in [("fill", "fill-"), ("stroke", "stroke-")] {
            let colours = drawing.matches(&format!(" {attribute}=\"#")).count();
            assert_eq!(colours, drawing.matches(&format!("class=\"{class}")).count(), "{svg}");
            assert!(colours > 5, "{svg}");
        }
        assert!(!svg.contains("#000000") && svg.contains("stroke-dasharray=\"16 8\""), "{svg}");
    }
    assert!(!inline.contains("<style>") && !inline.contains("http"), "the page has the style sheet");
    assert!(file.contains("<style>") && file.contains("xmlns=\"http://www.w3.org/2000/svg\""));
    assert_eq!(plot().to_svg(), plot().to_svg(), "the same bytes");
}

#[test]
fn what_cannot_be_drawn_is_an_error() {
    let with = |change: fn(&mut Plot)| {
        let mut plot = plot();
        change(&mut plot);
        plot.to_svg()
    };
    let empty = PlotError::Empty { plot: "rate".into() };
    assert_eq!(with(|plot| plot.series.clear()), Err(empty.clone()));
    assert_eq!(with(|plot| plot.series.iter_mut().for_each(|series| series.points.clear())), Err(empty));
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        let Err(PlotError::OffAxis { name, axis, .. }) = ({
            let mut plot = plot();
            plot.series[0].points[1].1 = value;
            plot.to_svg()
        }) else {
            panic!("{value} was drawn")
        };
        assert_eq!((&*name, &*axis), ("paged", "GB/s"));
    }
    assert!(matches!(with(|plot| plot.series[1].points[0].0 = 0.0), Err(PlotError::OffAxis { .. })), "log of 0");
    assert!(matches!(with(|plot| plot.levels[0].value = f64::NAN), Err(PlotError::OffAxis { .. })));
    let many = |plot: &mut Plot| plot.series = vec![plot.series[0].clone(); MAX_SERIES + 1];
    assert_eq!(with(many), Err(PlotError::TooManySeries { plot: "rate".into(), series: 7 }));
}

#[test]
fn every_number_of_lines_and_any_single_value_can_be_drawn() {
    for count in 1..=MAX_SERIES {
        let mut plot = plot();
        plot.series = (0..count).map(|i| Series { name: format!("line {i}"), points: vec![(7.0, 0.0)] }).collect();
        plot.levels.clear();
        let svg = plot.to_svg().unwrap();
        assert!((0..count).all(|i| svg.contains(&format!("\nline {i}\n"))), "{svg}");
    }
}

/// Every tick label: how it lies at its tick, and its left and right end by what an average character takes.
fn labels(svg: &str) -> Vec<(String, String, f64, f64)> {
    let attribute = |tag: &str, name: &str| {
        let value = tag.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
        value.map_or_else(String::new, |(value, _)| value.to_owned())
    };
    let texts = svg.split("<text ").skip(1).filter_map(|text| text.split_once('>'));
    let labels = texts.map(|(tag, rest)| {
        let text = rest.split_once("</text>").map_or("", |(text, _)| text).trim().to_owned();
        let number = |name| attribute(tag, name).parse::<f64>().expect("a number");
        let (anchor, width) = (attribute(tag, "text-anchor"), text.chars().count() as f64 * number("font-size") * 0.56);
        let from = number("x")
            - width * [("end", 1.0), ("middle", 0.5)].into_iter().find(|at| at.0 == anchor).map_or(0.0, |at| at.1);
        (anchor, text, from, from + width)
    });
    labels.filter(|(_, text, ..)| text.starts_with(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn x20_no_label_is_cut_and_none_touches_the_next() {
    for scale in [Scale::Log10, Scale::Log2, Scale::Linear] {
        for most in [1e5, 1.2e6, 9e8] {
            let mut plot = plot();
            (plot.x.scale, plot.y.scale) = (scale.clone(), scale.clone());
            let points = (0..9).map(|i| most / f64::from(1 << (2 * i))).map(|value| (value, value));
            plot.series = vec![Series { name: "line".into(), points: points.rev().collect() }];
            plot.levels.clear();
            let labels = labels(&plot.to_svg().unwrap());
            assert!(labels.len() >= 6 && labels.iter().any(|label| label.1.len() >= "32,768".len()), "{labels:?}");
            for (_, text, from, to) in &labels {
                assert!(*from >= 0.0 && *to <= 1120.0, "{scale:?}, {most}: {text} lies from {from} to {to}");
            }
            let mut below: Vec<_> = labels.iter().filter(|label| label.0 == "middle").collect();
            below.sort_by(|a, b| a.2.total_cmp(&b.2));
            assert!(below.len() >= 2, "{labels:?}");
            assert!(below.windows(2).all(|pair| pair[0].3 < pair[1].2), "{scale:?}, {most}: {below:?}");
        }
    }
}
