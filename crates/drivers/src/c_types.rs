//! Numbers in the types that a C library has for them: glibc and musl differ.

/// Returns a small number in the type of a field or an argument of the C library.
pub(crate) fn number<T, N>(value: N) -> T
where
    T: TryFrom<N> + Default,
{
    // No length and no constant that is passed here is beyond the range of a C int.
    T::try_from(value).unwrap_or_default()
}
