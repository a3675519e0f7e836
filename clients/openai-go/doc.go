// Package openaigo has the official Go client of the OpenAI API judge lukv serve. It
// consists of tests.
package openaigo
