//! The transcript of a case: the PDUs sent, the PDUs received and the remarks of the case, in order.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// The most lines that one case may record. Later ones are only counted: a peer that floods must not fill the
/// memory.
const MAX_LINES: usize = 400;

/// A transcript that all connections of a case write to.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    inner: Rc<RefCell<Inner>>,
}

#[derive(Debug)]
struct Inner {
    began: Instant,
    lines: Vec<String>,
    left_out: usize,
    remark: Option<String>,
}

/// The direction of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From us to the peer.
    Sent,
    /// From the peer to us.
    Came,
}

impl Record {
    pub(crate) fn new() -> Self {
        let inner = Inner { began: Instant::now(), lines: Vec::new(), left_out: 0, remark: None };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    /// Adds a PDU of connection `connection`.
    pub(crate) fn pdu(&self, way: Way, connection: usize, text: &str) {
        let arrow = match way {
            Way::Sent => "→",
            Way::Came => "←",
        };
        self.line(&format!("#{connection} {arrow} {text}"));
    }

    /// Adds any other event.
    pub(crate) fn event(&self, text: &str) {
        self.line(&format!("   {text}"));
    }

    /// Keeps a remark, which the result shows even if the case passes.
    pub(crate) fn remark(&self, text: impl Into<String>) {
        self.inner.borrow_mut().remark = Some(text.into());
    }

    fn line(&self, text: &str) {
        let mut inner = self.inner.borrow_mut();
        if inner.lines.len() >= MAX_LINES {
            inner.left_out += 1;
            return;
        }
        let at = inner.began.elapsed().as_millis();
        let clean: String = text.chars().map(|c| if c.is_control() { '·' } else { c }).collect();
        inner.lines.push(format!("{at:>6} ms {clean}"));
    }

    /// Returns the lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let inner = self.inner.borrow();
        let mut lines = inner.lines.clone();
        if inner.left_out > 0 {
            lines.push(format!("          … and {} more lines", inner.left_out));
        }
        lines
    }

    /// Returns the remark, if there was one.
    pub(crate) fn take_remark(&self) -> Option<String> {
        self.inner.borrow_mut().remark.take()
    }
}
