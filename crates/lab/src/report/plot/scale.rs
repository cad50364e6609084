//! Scales of axes: from values to fractions of the axis, and the ticks.

use super::super::number::{Short, exponent, fixed};

/// A numeric scale.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// The value at the start of the axis; its logarithm on a logarithmic axis.
    low: f64,
    /// The value at the end of the axis, which is greater; its logarithm on a logarithmic axis.
    high: f64,
    logarithmic: bool,
    /// The ticks: values with their labels.
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Returns a linear scale that contains all values and zero. It starts and ends at a tick.
    pub(super) fn linear_from_zero(values: &[f64]) -> Self {
        let (low, high) = range(values, can_draw).unwrap_or((0.0, 1.0));
        let (low, mut high) = (low.min(0.0), high.max(0.0));
        if low == high {
            high = 1.0;
        }
        let step = nice_step(high - low);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        Self::linear(first * step, last * step, step)
    }

    /// Returns a linear scale from the smallest value to the largest.
    pub(super) fn linear_tight(values: &[f64]) -> Self {
        let (low, high) = range(values, can_draw).unwrap_or((0.0, 1.0));
        let (low, high) = match high - low <= 1e-9 * low.abs().max(high.abs()) {
            true if low == 0.0 => (-1.0, 1.0),
            true => (low - 0.1 * low.abs(), high + 0.1 * high.abs()),
            false => (low, high),
        };
        Self::linear(low, high, nice_step(high - low))
    }

    fn linear(low: f64, high: f64, step: f64) -> Self {
        let (first, past) = ((low / step - 1e-6).ceil(), high / step + 1e-6);
        let label = |value: f64| match exponent(low.abs().max(high.abs())) {
            -4..=6 => fixed(value, (-exponent(step)).max(0)),
            _ => Short(value).to_string(),
        };
        let ticks = (0..TICKS_MAX).map(|index| first + f64::from(index)).take_while(|index| *index <= past);
        // Without the addition, -0.0 remains.
        let ticks = ticks.map(|index| index * step + 0.0).map(|value| (value, label(value))).collect();
        Self { low, high, logarithmic: false, ticks }
    }

    /// Returns a logarithmic scale that contains all positive values. It starts and ends at 1, 2 or 5 times
    /// a power of ten.
    pub(super) fn logarithmic(values: &[f64]) -> Self {
        let (low, high) = range(values, |value| can_draw(value) && value > 0.0).unwrap_or((1.0, 10.0));
        let first = (round_step(low) - 6..).find(|step| value_of(*step + 1) > low * (1.0 + 1e-9));
        let last = (round_step(high) - 6..).find(|step| value_of(*step) >= high * (1.0 - 1e-9));
        let (first, last) = (first.unwrap_or(0), last.unwrap_or(1));
        let last = last.max(first + 1);
        let every = match last - first {
            0..=9 => 1,
            steps => 3 * (steps / 27 + 1),
        };
        let ticks = (first..=last).filter(|step| step.rem_euclid(every) == 0).map(value_of);
        let ticks = ticks.map(|value| (value, Short(value).to_string())).collect();
        Self { low: value_of(first).log10(), high: value_of(last).log10(), logarithmic: true, ticks }
    }

    /// Returns a logarithmic scale from the smallest positive value to the largest, with a tick at each value if
    /// they are few.
    pub(super) fn logarithmic_tight(values: &[f64]) -> Self {
        let mut distinct: Vec<f64> =
            values.iter().copied().filter(|value| can_draw(*value) && *value > 0.0).collect();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        match (distinct.first(), distinct.last()) {
            (Some(low), Some(high)) if *high > low * 1.1 && distinct.len() <= VALUE_TICKS_MAX => Self {
                low: low.log10(),
                high: high.log10(),
                logarithmic: true,
                ticks: distinct.iter().map(|value| (*value, Short(*value).to_string())).collect(),
            },
            _ => Self::logarithmic(values),
        }
    }

    /// Returns where on the axis a value lies, from 0 to 1; nothing for a value that cannot be drawn.
    pub(super) fn fraction(&self, value: f64) -> Option<f64> {
        let can_draw = can_draw(value) && (!self.logarithmic || value > 0.0);
        can_draw.then(|| self.clamped(value))
    }

    /// Returns where on the axis a value lies. Values outside lie at the ends.
    pub(super) fn clamped(&self, value: f64) -> f64 {
        let value = match self.logarithmic {
            true if value > 0.0 => value.log10(),
            true => self.low,
            false => value,
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the ticks: fractions of the axis with their labels.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, &str)> {
        self.ticks.iter().map(|(value, label)| (self.clamped(*value), label.as_str()))
    }
}

/// An axis of more ticks than this is a mistake in its step.
const TICKS_MAX: u32 = 20;

/// More ticks than this need a regular pattern to be read.
const VALUE_TICKS_MAX: usize = 8;

/// Returns whether a value can be drawn. Differences of values beyond these bounds can overflow.
pub(super) fn can_draw(value: f64) -> bool {
    value == 0.0 || (1e-280..1e280).contains(&value.abs())
}

/// Returns the smallest and the largest of the values that qualify.
fn range(values: &[f64], qualifies: impl Fn(f64) -> bool) -> Option<(f64, f64)> {
    let values = values.iter().copied().filter(|value| qualifies(*value));
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// Returns 1, 2 or 5 times a power of ten, of which four to ten make the span.
fn nice_step(span: f64) -> f64 {
    let power = 10_f64.powi(exponent(span / 5.0));
    match span / 5.0 / power {
        ..1.5 => power,
        ..3.5 => 2.0 * power,
        ..7.5 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// Returns the number of the step of [`value_of`] at the power of ten below a value.
fn round_step(value: f64) -> i32 {
    3 * exponent(value)
}

/// Returns the values 1, 2, 5, 10, 20, 50 … by number.
fn value_of(step: i32) -> f64 {
    let mantissa = match step.rem_euclid(3) {
        0 => 1.0,
        1 => 2.0,
        _ => 5.0,
    };
    mantissa * 10_f64.powi(step.div_euclid(3))
}
