//! Cookies: they prove that an initiator receives what is sent to its source address. The target stores
//! nothing for them.

use core::fmt;

use base::ether::{EtherPort, Mac};
use base::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::{COOKIE_LEN, Cookie, HandshakeId};
use security::random::{HmacDrbg, mac};

/// What a cookie is bound to: it is valid for this handshake only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CookieBinding<'a> {
    pub(crate) port: EtherPort,
    pub(crate) source: Mac,
    pub(crate) handshake: &'a HandshakeId,
    pub(crate) group: &'a GroupName,
    pub(crate) target: &'a Name,
}

/// Makes cookies and verifies them.
pub(crate) struct Cookies {
    current: Zeroizing<[u8; 64]>,
    previous: Zeroizing<[u8; 64]>,
    rotated: Instant,
}

impl Cookies {
    /// How long a cookie is valid: many times what an initiator needs to return it.
    pub(crate) const LIFETIME: Duration = Duration::from_secs(10);
    /// How long a secret makes cookies. It is kept for as long again to verify them.
    const ROTATION: Duration = Duration::from_secs(60);

    /// Makes the two secrets from `random`.
    pub(crate) fn new(now: Instant, random: &mut HmacDrbg) -> Self {
        let mut fresh = || Zeroizing::new(random.bytes());
        Self { current: fresh(), previous: fresh(), rotated: now }
    }

    /// Makes a cookie.
    pub(crate) fn make(
        &mut self,
        now: Instant,
        random: &mut HmacDrbg,
        binding: &CookieBinding<'_>,
    ) -> Cookie {
        if now.since(self.rotated) >= Self::ROTATION {
            self.previous = core::mem::replace(&mut self.current, Zeroizing::new(random.bytes()));
            self.rotated = now;
        }
        let time = now.0.to_be_bytes();
        let mut cookie = [0; COOKIE_LEN];
        let (head, tail) = cookie.split_at_mut(time.len());
        head.copy_from_slice(&time);
        for (to, from) in tail.iter_mut().zip(proof(&self.current, &time, binding)) {
            *to = from;
        }
        cookie
    }

    /// Returns whether this server made the cookie for `binding`, within [`Self::LIFETIME`].
    pub(crate) fn knows(&self, now: Instant, cookie: &Cookie, binding: &CookieBinding<'_>) -> bool {
        let Some((time, tail)) = cookie.split_first_chunk::<8>() else { return false };
        let made = Instant(u64::from_be_bytes(*time));
        if made > now || now.since(made) > Self::LIFETIME {
            return false;
        }
        [&self.current, &self.previous].into_iter().any(|secret| {
            let proof = proof(secret, time, binding);
            proof.get(..tail.len()).is_some_and(|proof| proof.ct_eq(tail).into())
        })
    }
}

impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookies")
    }
}

fn proof(secret: &[u8; 64], time: &[u8; 8], binding: &CookieBinding<'_>) -> [u8; 64] {
    let port = binding.port.0.to_be_bytes();
    // Neither name can contain a zero byte, so the separator is unambiguous.
    let (group, target) = (binding.group.as_bytes(), binding.target.as_bytes());
    mac(secret, &[time, &port, &binding.source.0, binding.handshake, group, &[0], target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_one_errand_for_a_while() {
        let mut random = HmacDrbg::new([1; 32]);
        let mut cookies = Cookies::new(Instant::ORIGIN, &mut random);
        let (group, target) = (GroupName::new("g").unwrap(), Name::new("iqn.2026-11.a:b").unwrap());
        let (other_group, other) = (GroupName::new("h").unwrap(), Name::new("iqn.2026-11.a:c").unwrap());
        let binding = CookieBinding {
            port: EtherPort(1),
            source: Mac([2; 6]),
            handshake: &[3; 16],
            group: &group,
            target: &target,
        };
        let at = |seconds: u64| Instant::ORIGIN.after(Duration::from_secs(seconds));
        let cookie = cookies.make(at(55), &mut random, &binding);
        assert!(cookies.knows(at(55), &cookie, &binding));
        assert!(!cookies.knows(at(54), &cookie, &binding), "made in the future");
        for wrong in [
            CookieBinding { port: EtherPort(2), ..binding },
            CookieBinding { source: Mac([4; 6]), ..binding },
            CookieBinding { handshake: &[4; 16], ..binding },
            CookieBinding { group: &other_group, ..binding },
            CookieBinding { target: &other, ..binding },
        ] {
            assert!(!cookies.knows(at(55), &cookie, &wrong), "{wrong:?}");
        }
        for bit in 0..COOKIE_LEN * 8 {
            let mut flipped = cookie;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!cookies.knows(at(55), &flipped, &binding), "bit {bit}");
        }
        cookies.make(at(61), &mut random, &binding);
        assert!(cookies.knows(at(65), &cookie, &binding), "the secret before is still known");
        assert!(!cookies.knows(at(66), &cookie, &binding), "too old");
        let cookie = cookies.make(at(120), &mut random, &binding);
        cookies.make(at(121), &mut random, &binding);
        cookies.make(at(181), &mut random, &binding);
        let forged_time = cookies.make(at(182), &mut random, &binding);
        let mut older = cookie;
        older[..8].copy_from_slice(&forged_time[..8]);
        assert!(!cookies.knows(at(182), &older, &binding), "the time is part of what is proven");
    }
}
