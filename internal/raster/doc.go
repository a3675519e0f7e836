// Package raster turns the SVG that package report writes into pictures of dots. It
// is a package of its own so that only programs that draw have its fonts.
package raster
