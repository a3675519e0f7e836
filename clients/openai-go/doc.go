// Package openaigo checks lukv serve against the official Go client of the OpenAI API.
// It contains only tests.
package openaigo
