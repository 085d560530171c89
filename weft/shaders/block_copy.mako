## Copy channel blocks of NC4HW4 to a later position among the channels.
${k.for_each("i", "TOTAL")} {
  ${k.split(y, "i", "HW", "BLOCKS")}
  ${y.store4("n", "FIRST + c", "p", x.load4("n", "c", "p"))}
}
