// Package drafting says which tokens to guess before they are computed, and how many: an
// [Index] finds what followed the same tokens earlier in the text, and a [Gain] weighs the
// time of drafts from a compressed cache against the passes that they save. It knows no
// model and no session.
package drafting
