// Package hub fetches checkpoints from a model hub and finds those that are
// already on disk. It speaks the protocol of huggingface.co and shares the cache
// of the Python tools, so that a model downloaded by either serves both.
//
// [ParseRef] reads a name such as owner/name@revision, [New] makes a [Client]
// from the environment, [Client.Pull] downloads what this module needs of a
// repository, and [Find] returns the folder of a cached one without using the
// network.
//
// # GGUF
//
// OWNER/NAME:TAG names a GGUF file by the rules of llama.cpp's -hf: the tag is found, in
// any case, before a point or a hyphen anywhere in the path of a file, and the first file
// in the order of the listing counts. Without a tag, a repository that has only GGUF
// files gives Q4_K_M, else Q8_0, else its first model. A model in several files counts as
// its first one. The cache is the same, so that either program opens what the other has
// downloaded. [FindOllama] finds what ollama has pulled.
//
// # Cache
//
// The cache has a folder models--OWNER--NAME for each repository:
//
//	blobs/HASH               contents, named by sha256 (large files) or git blob id
//	blobs/HASH.incomplete    contents that are still arriving
//	snapshots/COMMIT/FILE    links to blobs
//	refs/REVISION            the commit to which a branch or tag last referred
//
// and .locks/models--OWNER--NAME/HASH.lock, which a process holds while it
// downloads that content. Contents get their name once they are complete and
// checked, and a ref is written after all files of its commit: whatever can be
// found is complete, if this package wrote it.
//
// # Environment
//
// HF_HUB_CACHE is the cache; it defaults to hub under HF_HOME, which defaults to
// huggingface under XDG_CACHE_HOME or ~/.cache. LLAMA_CACHE is the cache of GGUF files,
// if it is set. HF_ENDPOINT, or before it MODEL_ENDPOINT, is the hub. HF_TOKEN
// is the access token; by default it is read from HF_TOKEN_PATH or the file token
// in HF_HOME. With HF_HUB_DISABLE_IMPLICIT_TOKEN none is sent. HF_HUB_OFFLINE
// forbids the network. Switches are set by 1, true, yes or on.
//
// # Trust
//
// The token is sent only to the endpoint's own host, never along a redirect to
// another, and no redirect from https to http is followed. File names and hashes
// in the hub's answers are checked before they become paths. Contents are
// compared with the sha256 or git blob id that the hub listed; where a mirror
// lists neither, only sizes are compared.
//
// # Concurrency
//
// A Client may be used by any number of goroutines once its fields are set. On
// systems with file locks (Linux, macOS, BSD; on Windows, among processes of
// this package) several processes, Python ones included, may pull into the same
// cache at the same time; elsewhere only one may.
//
// # Limits
//
// Model repositories only; no uploads. Contents stored as Xet chunks come through
// the hub's bridge as plain files.
package hub
