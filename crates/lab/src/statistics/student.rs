//! Student's t distribution.

/// Returns the probability that the mean of a centred distribution is at least as far from zero as `value`,
/// given its standard error and the degrees of freedom of that error.
pub(super) fn two_sided_p(value: f64, error: f64, freedom: f64) -> f64 {
    if value == 0.0 {
        return 1.0;
    }
    if error == 0.0 {
        return 0.0;
    }
    let t = value / error;
    incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
}

/// Returns the t that a centred distribution exceeds, in either direction, with a probability of `level`.
pub(super) fn quantile(level: f64, freedom: f64) -> f64 {
    let is_below = |t: f64| two_sided_p(t, 1.0, freedom) > level;
    let (mut low, mut high) = (0.0, 1.0);
    while is_below(high) && high < QUANTILE_MAX {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if is_below(middle) { low = middle } else { high = middle }
    }
    high
}

/// Enough for a level of one in 1e12 and one degree of freedom.
const QUANTILE_MAX: f64 = 1e13;

/// Halves an interval as wide as the quantile down to the precision of the number.
const BISECTIONS: u32 = 52;

/// Returns the regularized incomplete beta function of `x`, by the continued fraction of DLMF 8.17.22.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast only on this side; the function is symmetric.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log_front = a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b);
    log_front.exp() * beta_fraction(x, a, b) / a
}

/// Evaluates the continued fraction by the method of Lentz.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let nonzero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = nonzero(1.0 - (a + b) * x / (a + 1.0)).recip();
    let mut fraction = d;
    for m in 1..FRACTION_TERMS_MAX {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = nonzero(1.0 + even * d).recip();
        c = nonzero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = nonzero(1.0 + odd * d).recip();
        c = nonzero(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    fraction
}

/// Replaces a zero denominator of the fraction.
const TINY: f64 = 1e-300;

/// The fraction converges in about the square root of the larger parameter; this covers 10 000 samples.
const FRACTION_TERMS_MAX: u32 = 1000;

/// Returns the logarithm of the gamma function of a positive number: Stirling's series, after the recurrence
/// has moved the argument to where five terms give double precision.
fn ln_gamma(x: f64) -> f64 {
    let mut x = x;
    let mut product = 1.0;
    while x < 15.0 {
        product *= x;
        x += 1.0;
    }
    let inverse = x.recip();
    let square = inverse * inverse;
    let series = inverse
        * (1.0 / 12.0
            - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square * (1.0 / 1680.0 - square / 1188.0))));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - f64::ln(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of every textbook.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table = [
            (1.0, 12.7062),
            (2.0, 4.302_65),
            (3.0, 3.182_45),
            (8.0, 2.306_00),
            (10.0, 2.228_14),
            (30.0, 2.042_27),
            (1000.0, 1.962_34),
            (100_000.0, 1.959_98),
        ];
        for (freedom, t) in table {
            let found = quantile(0.05, freedom);
            assert!((found - t).abs() < 1e-4, "{freedom}: {found}");
        }
        // Of small levels, by the closed forms for one and two degrees of freedom.
        for level in [1e-3, 5e-5, 1e-9] {
            let one = 1.0 / f64::tan(level * std::f64::consts::FRAC_PI_2);
            assert!((quantile(level, 1.0) / one - 1.0).abs() < 1e-6, "{level}");
            let two = (1.0 - level) * f64::sqrt(2.0 / (level * (2.0 - level)));
            assert!((quantile(level, 2.0) / two - 1.0).abs() < 1e-6, "{level}");
        }
    }

    #[test]
    fn probabilities_have_their_closed_forms() {
        for t in [0.1, 1.0, 3.0, 50.0] {
            let one = 1.0 - 2.0 / std::f64::consts::PI * f64::atan(t);
            assert!((two_sided_p(t, 1.0, 1.0) - one).abs() < 1e-12, "{t}");
            let two = 1.0 - t / f64::sqrt(2.0 + t * t);
            assert!((two_sided_p(-t, 1.0, 2.0) - two).abs() < 1e-12, "{t}");
        }
    }

    #[test]
    fn gamma_of_integers_is_the_factorial() {
        let mut factorial: f64 = 1.0;
        for n in 1..=20_u32 {
            assert!((ln_gamma(f64::from(n)) - factorial.ln()).abs() < 1e-12, "{n}");
            factorial *= f64::from(n);
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
    }
}
