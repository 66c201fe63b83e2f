"""Float precisions: conversion to float16, and widening of float16 to float32."""
