//! Values that stand in files as they are displayed.

use std::fmt;

use crate::gpu::error::SpecError;

/// What was read of `text`, if it is displayed just so: a number may be written in several ways.
pub(crate) fn as_displayed<T: fmt::Display>(
    option: &'static str,
    text: &str,
    read: Option<T>,
    rule: &str,
) -> Result<T, SpecError> {
    read.filter(|read| read.to_string() == text).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        SpecError::new(option, format!("is `{shown}`; it must be {rule}"))
    })
}

/// What serde asks of a type that is read and written as text.
macro_rules! in_files_as_displayed {
    ($kind:ty) => {
        impl TryFrom<String> for $kind {
            type Error = SpecError;

            fn try_from(text: String) -> Result<Self, SpecError> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use in_files_as_displayed;
