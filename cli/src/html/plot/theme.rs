//! Colours, dashes and marks. The drawing has the light colours as they are, so that a viewer without style sheets
//! shows it; a class beside each lets `plot.css` put others in their place.

use plotters::style::RGBColor;

pub const CSS: &str = include_str!("plot.css");

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Role {
    pub name: &'static str,
    pub light: RGBColor,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub dashes: &'static str,
}

const fn role(name: &'static str, red: u8, green: u8, blue: u8, dashes: &'static str) -> Role {
    Role { name, light: RGBColor(red, green, blue), dashes }
}

pub(super) const INK: Role = role("ink", 0x1f, 0x23, 0x28, "");
pub(super) const AXIS: Role = role("axis", 0x8c, 0x95, 0x9f, "");
pub(super) const GRID: Role = role("grid", 0xe1, 0xe4, 0xe8, "");
pub(super) const LEVEL: Role = role("level", 0x6e, 0x40, 0xc9, "18 8 4 8");
/// The data. Told apart without colours by their dashes, and by the marks of `draw`.
pub(super) const SERIES: [Role; 6] = [
    role("s1", 0x00, 0x6b, 0xb3, ""),
    role("s2", 0xc2, 0x4e, 0x00, "16 8"),
    role("s3", 0x00, 0x79, 0x5a, "6 6"),
    role("s4", 0xa8, 0x3f, 0x7c, "24 8"),
    role("s5", 0x7d, 0x63, 0x00, "16 6 4 6"),
    role("s6", 0x55, 0x5c, 0x66, "3 8"),
];

const ROLES: [Role; 10] = {
    let [a, b, c, d, e, f] = SERIES;
    [INK, AXIS, GRID, LEVEL, a, b, c, d, e, f]
};

pub(super) fn classify(svg: &str) -> String {
    let mut svg = svg.to_owned();
    for Role { name, light: RGBColor(red, green, blue), dashes } in ROLES {
        let color = format!("#{red:02X}{green:02X}{blue:02X}");
        let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        let stroke = format!("class=\"stroke-{name}\" stroke=\"{color}\"{dashes}");
        svg = svg.replace(&format!("stroke=\"{color}\""), &stroke);
        svg = svg.replace(&format!("fill=\"{color}\""), &format!("class=\"fill-{name}\" fill=\"{color}\""));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_has_every_colour_twice_and_both_classes() {
        for Role { name, light: RGBColor(red, green, blue), .. } in ROLES {
            assert!(CSS.contains(&format!("--{name}: #{red:02x}{green:02x}{blue:02x};")), "{name}");
            assert_eq!(CSS.matches(&format!("--{name}: ")).count(), 2, "{name}: light and dark");
            assert!(CSS.contains(&format!(".fill-{name} {{ fill: var(--{name}); }}")), "{name}");
            assert!(CSS.contains(&format!(".stroke-{name} {{ stroke: var(--{name}); }}")), "{name}");
        }
    }

    #[test]
    fn classes_stand_beside_colours_and_nowhere_else() {
        let svg = classify("<line stroke=\"#C24E00\"/><text fill=\"#1F2328\">#C24E00</text><rect fill=\"none\"/>");
        assert_eq!(
            svg,
            "<line class=\"stroke-s2\" stroke=\"#C24E00\" stroke-dasharray=\"16 8\"/>\
             <text class=\"fill-ink\" fill=\"#1F2328\">#C24E00</text><rect fill=\"none\"/>"
        );
    }
}
