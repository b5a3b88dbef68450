//! The methods that get an option, and those that set one and return the whole.

/// Writes a method for every line `name(field: type)`, which sets the field to its argument, or to what stands behind `=>`.
macro_rules! setters {
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
    ($($(#[$doc:meta])* $name:ident($field:ident: $type:ty) $(=> $value:expr)?;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $field: $type) -> Self {
            self.$field = crate::setters::setters!(@value $field $($value)?);
            self
        }
    )*};
}

/// Writes a getter for every line `field: type`, and for every line `field: type, with_field(type)` a setter as well.
macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kept:ty $(, $with:ident($given:ty) $(=> $value:expr)?)?;)*) => {$(
        $(#[$doc])*
        pub fn $field(&self) -> $kept {
            self.$field
        }
        $(crate::setters::setters! {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            $with($field: $given) $(=> $value)?;
        })?
    )*};
}

pub(crate) use {options, setters};
