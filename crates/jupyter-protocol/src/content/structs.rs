//! How contents are defined: public fields with defaults, and a place for what is not specified.

use serde::{Deserialize, Deserializer};

/// Defines the content of a message.
///
/// Each field may be absent, and then has its default; `null` is the default of its type, as for IPython. A `reply` also has a status, and what went
/// wrong.
macro_rules! content_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* pub $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(deserialize_with = "crate::content::structs::null_as_default")]
                pub $field: $type,
            )*
            /// Fields that are not in the specification, as they came.
            #[serde(flatten)]
            pub extra: crate::json::JsonMap,
        }
    };
    (
        $(#[$meta:meta])*
        pub reply $name:ident {
            $( $(#[$field_meta:meta])* pub $field:ident: $type:ty, )*
        }
    ) => {
        crate::content::structs::content_struct! {
            $(#[$meta])*
            pub struct $name {
                /// How it went. Absent means well.
                pub status: crate::content::ReplyStatus,
                $( $(#[$field_meta])* pub $field: $type, )*
                /// The kind of error, such as the name of an exception, when it went wrong.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub ename: Option<String>,
                /// The message of the error, when it went wrong.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub evalue: Option<String>,
                /// Lines that say where, with terminal colours, when it went wrong.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub traceback: Option<Vec<String>>,
            }
        }

        impl $name {
            /// An answer that says that the request went wrong, and how.
            #[must_use]
            pub fn failed(error: crate::content::ErrorContent) -> Self {
                Self {
                    status: crate::content::ReplyStatus::Error,
                    ename: Some(error.ename),
                    evalue: Some(error.evalue),
                    traceback: Some(error.traceback),
                    ..Self::default()
                }
            }
        }

        impl crate::content::Reply for $name {
            fn status(&self) -> &crate::content::ReplyStatus {
                &self.status
            }

            fn error(&self) -> Option<crate::content::ErrorContent> {
                if !self.status.is_error() {
                    return None;
                }
                Some(crate::content::ErrorContent {
                    ename: self.ename.clone().unwrap_or_default(),
                    evalue: self.evalue.clone().unwrap_or_default(),
                    traceback: self.traceback.clone().unwrap_or_default(),
                    ..Default::default()
                })
            }
        }
    };
}

pub(crate) use content_struct;

/// Reads `null` as the default. Kernels write it for nearly any field.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
