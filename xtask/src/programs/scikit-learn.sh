# Trains models with scikit-learn in parallel processes, and keeps one in a file.
# pip: scikit-learn numpy
# options: --memory 2g

cat > t.py <<'END'
import joblib, numpy as np
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
data = load_iris()
model = RandomForestClassifier(20, random_state=1, n_jobs=2)
print(cross_val_score(model, data.data, data.target, cv=3, n_jobs=2).round(4))
joblib.dump(model.fit(data.data, data.target), "model"); print(joblib.load("model").predict(data.data[:3]))
print(sum(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-i) for i in range(100))))
END
python t.py; echo "status $?"; rm model
