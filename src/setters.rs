//! The methods that set an option and return the whole.

/// Writes a method for every line `name(field: type)`, which sets the field to its argument, or to what stands behind `=>`.
macro_rules! setters {
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
    ($($(#[$doc:meta])* $name:ident($field:ident: $type:ty) $(=> $value:expr)?;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $field: $type) -> Self {
            self.$field = setters!(@value $field $($value)?);
            self
        }
    )*};
}

pub(crate) use setters;
