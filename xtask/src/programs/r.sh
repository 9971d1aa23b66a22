# Fits a linear model in R, and draws it.
# has: Rscript
# apt: r-base-core

cat > model.R <<'END'
set.seed(7)
data <- data.frame(x = 1:20)
data$y <- 3 * data$x + rnorm(20)
model <- lm(y ~ x, data)
print(round(coef(model), 6))
print(anova(model)$Df)
print(summary(c(1, 2, 4)))
cat(toupper("größe"), format(as.POSIXct(0, origin = "1970-01-01", tz = "Asia/Tokyo"), "%H:%M %Z"), "\n")
pdf("plot.pdf")
plot(data)
invisible(dev.off())
write.csv(head(data, 3), "head.csv")
message("done")
END
Rscript model.R
echo '%PDF' | cmp -n 4 - plot.pdf && rm plot.pdf
echo 'cat(sum(1:10), "\n")' | R --slave --no-save
