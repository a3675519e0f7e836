// Package weights brings the tensors of a checkpoint from files to memory: safetensors folders
// and GGUF files, mapped and used where they lie, each tensor found by its role, checked
// against the config, and repacked or put in order where a file stores it otherwise. It also
// identifies weights by their bytes, and tells when a file changes while it is in use.
package weights
