// Package sysmem reports how much memory the system has and how much is available.
package sysmem
