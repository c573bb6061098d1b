"""Small helpers shared by the other packages."""

from .lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "DecodeError": "errors",
        "UserError": "errors",
        "WeightsError": "errors",
        "atomic_path": "atomic",
        "atomic_write": "atomic",
        "bundle_config": "resources",
        "first_line": "errors",
        "is_lfs_pointer": "lfs",
        "nearest": "names",
        "os_reason": "errors",
        "plain": "plain_values",
        "read_json": "json_files",
        "read_yaml": "yaml_files",
        "read_key": "pseudonyms",
        "resource": "resources",
        "told_briefly": "told",
        "unknown": "names",
    },
)
