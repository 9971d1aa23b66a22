//! The definition of contents: public fields with defaults, and a map of unknown fields.

use serde::{Deserialize, Deserializer};

/// Defines the content of a message.
///
/// A missing field has its default; `null` is the default of the field's type, as in IPython. A `reply` also has a
/// status and the fields of an error.
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
            /// Fields that are not in the specification, unchanged.
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
                /// The status of the reply. Default: success.
                pub status: crate::content::ReplyStatus,
                $( $(#[$field_meta])* pub $field: $type, )*
                /// The type of the error, such as the name of an exception.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub ename: Option<String>,
                /// The message of the error.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub evalue: Option<String>,
                /// The lines of the traceback, with terminal colours.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub traceback: Option<Vec<String>>,
            }
        }

        impl $name {
            /// Creates a reply that reports an error.
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

/// Reads `null` as the default: kernels send it for nearly any field.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
