// Package sysmem tells how much memory the system has and can give.
package sysmem
