//! Medians with their spread, for people and as JSON.

use std::path::Path;

use serde_json::{Value, json};

/// Results of several runs under one name.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Everything one mode has measured.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<(String, Series, &'static str)>,
    ratios: Vec<(String, f64)>,
}

impl Report {
    /// One more run of the measurement `name`.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        match self.rows.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, series, _)) => series.add(value),
            None => self.rows.push((name, Series(vec![value]), unit)),
        }
    }

    pub fn median(&self, name: &str) -> f64 {
        self.rows.iter().find(|(known, ..)| known == name).map_or(f64::NAN, |(_, series, _)| series.median())
    }

    pub fn ratio(&mut self, name: impl Into<String>, value: f64) {
        self.ratios.push((name.into(), value));
    }

    pub fn print(&self) {
        println!("{:<44} {:>12} {:>12} {:>12}", "", "median", "min", "max");
        for (name, series, unit) in &self.rows {
            let label = format!("{name}, {unit}");
            println!(
                "{label:<44} {:>12} {:>12} {:>12}",
                round(series.median()),
                round(series.min()),
                round(series.max())
            );
        }
        for (name, ratio) in &self.ratios {
            println!("{name:<44} {ratio:>12.3}");
        }
    }

    pub fn write(&self, path: &Path, settings: &str) {
        let rows = self.rows.iter().map(|(name, series, unit)| {
            let (median, min, max) = (series.median(), series.min(), series.max());
            json!({"name": name, "unit": unit, "runs": series.0, "median": median, "min": min, "max": max})
        });
        let ratios: serde_json::Map<String, Value> =
            self.ratios.iter().map(|(name, ratio)| (name.clone(), json!(ratio))).collect();
        let all = json!({"settings": settings, "measured": rows.collect::<Vec<_>>(), "ratios": ratios});
        std::fs::write(path, format!("{all:#}\n")).expect("the JSON file can be written");
    }
}

fn round(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
