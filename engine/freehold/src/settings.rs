//! [`settings!`] defines structs of settings.
//!
//! A struct of settings is `#[non_exhaustive]`, so that later versions can add a setting. A program outside
//! of this crate therefore starts from a default and calls one method for each setting that it changes.
//! `Config` (`engine/config.rs`), `SpaceConfig` (`space/mod.rs`) and smaller structs are made in this way.

/// Defines a struct of public fields. Each field has a method that takes the settings and returns them with a
/// new value of the field.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$about:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        impl $name {$(
            #[doc = concat!("Returns these settings with another value of the field `", stringify!($field), "`.")]
            #[must_use]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}
