//! The plot: a bar for each ratio, as SVG, on a logarithmic scale so that half and double weigh the
//! same.

use std::fmt::Write as _;

use crate::outcome::Outcome;
use crate::peer::Peer;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 640.0;
const BAR: f64 = 9.0;
const GAP: f64 = 9.0;
const TOP: f64 = 56.0;
/// The ratios at the ends of the scale; what lies beyond is cut, and its number says so.
const ENDS: (f64, f64) = (0.05, 20.0);

fn colour(peer: Peer) -> &'static str {
    match peer {
        Peer::Plain => "#9aa0a6",
        Peer::Overlay => "#3c4043",
        Peer::Volatile => "#80868b",
        Peer::FuseOverlayfs => "#e37400",
        Peer::Off => "#aecbfa",
        Peer::Session => "#4285f4",
        Peer::Files => "#0b57d0",
        Peer::Exact => "#681da8",
        Peer::SessionUring => "#5bb974",
        Peer::FilesUring => "#137333",
        Peer::FilesWalked => "#0d652d",
    }
}

fn position(ratio: f64) -> f64 {
    let (low, high) = (ENDS.0.ln(), ENDS.1.ln());
    LEFT + (ratio.clamp(ENDS.0, ENDS.1).ln() - low) / (high - low) * WIDTH
}

/// The ratios of `outcome` to kernel overlayfs.
pub fn svg(outcome: &Outcome) -> String {
    let peers: Vec<Peer> = outcome
        .peers()
        .into_iter()
        .filter(|peer| !matches!(peer, Peer::Overlay | Peer::Volatile))
        .collect();
    let row = peers.len() as f64 * BAR + GAP;
    let height = TOP + outcome.results.len() as f64 * row + 24.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 70.0
    );
    let _ = writeln!(
        text,
        "<text x=\"8\" y=\"16\" font-size=\"13\">Time as ratio to kernel overlayfs (left is faster; pale: too noisy to quote)</text>"
    );
    let mut x = 8.0;
    for peer in &peers {
        let _ = writeln!(
            text,
            "<rect x=\"{x:.0}\" y=\"25\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0}\" y=\"34\">{peer}</text>",
            colour(*peer),
            x + 14.0
        );
        x += 40.0 + peer.as_str().len() as f64 * 7.0;
    }
    for mark in [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0] {
        let x = position(mark);
        let (stroke, y) = if mark == 1.0 {
            ("#3c4043", height - 20.0)
        } else {
            ("#dadce0", height - 20.0)
        };
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.0}\" y2=\"{y:.0}\" stroke=\"{stroke}\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{mark}</text>",
            TOP - 6.0,
            height - 8.0
        );
    }
    for (index, result) in outcome.results.iter().enumerate() {
        let mut y = TOP + index as f64 * row;
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + row / 2.0,
            result.name
        );
        for peer in &peers {
            if let Some(found) = result.found.get(peer)
                && let Some(ratio) = found.ratio
            {
                let (one, other) = (position(1.0), position(ratio));
                let (from, to) = (one.min(other), one.max(other));
                let _ = writeln!(
                    text,
                    "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" opacity=\"{}\"/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"8\">{ratio:.2}</text>",
                    (to - from).max(0.5),
                    BAR - 1.0,
                    colour(*peer),
                    if found.noisy { "0.35" } else { "1" },
                    to + 2.0,
                    y + BAR - 2.0
                );
            }
            y += BAR;
        }
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_distances() {
        let (half, one, double) = (position(0.5), position(1.0), position(2.0));
        assert!(((one - half) - (double - one)).abs() < 1e-9);
        assert_eq!(position(1000.0), LEFT + WIDTH);
    }
}
