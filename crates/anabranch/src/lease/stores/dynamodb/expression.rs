//! Changes and conditions of a write, in DynamoDB's expression language.

use super::item::AttributeMap;
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::HashMap;

/// One write to one item. A value, so that it can be sent again, alone or in a transaction.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::lease) struct WriteRequest {
    pub(in crate::lease) key: AttributeMap,
    pub(in crate::lease) action: WriteAction,
    /// The changes and the condition.
    pub(in crate::lease) expression: Expression,
}

/// The action on an item.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::lease) enum WriteAction {
    /// Writes a whole item. Only used for an item that must not exist.
    Put(AttributeMap),
    /// Changes some attributes and leaves the others as they are.
    Update,
    /// Removes the item.
    Delete,
}

impl WriteRequest {
    /// Creates an item that must not exist.
    pub(in crate::lease) fn create(key: AttributeMap, item: AttributeMap) -> Self {
        let expression = key.keys().fold(Expression::default(), |e, name| e.when_absent(name));
        Self { key, action: WriteAction::Put(item), expression }
    }

    /// Updates an item.
    pub(in crate::lease) fn update(key: AttributeMap, expression: Expression) -> Self {
        Self { key, action: WriteAction::Update, expression }
    }

    /// Deletes an item.
    pub(in crate::lease) fn delete(key: AttributeMap, expression: Expression) -> Self {
        Self { key, action: WriteAction::Delete, expression }
    }
}

/// Changes and conditions on attributes. Attribute names always go through placeholders, because
/// many plain words are reserved.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::lease) struct Expression {
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    sets: Vec<String>,
    removes: Vec<String>,
    adds: Vec<String>,
    conditions: Vec<String>,
}

impl Expression {
    /// Sets an attribute.
    pub(in crate::lease) fn set(mut self, name: &str, value: AttributeValue) -> Self {
        let (name, value) = (self.name(name), self.value(value));
        self.sets.push(format!("{name} = {value}"));
        self
    }

    /// Sets an attribute, or removes it if there is no value.
    pub(in crate::lease) fn set_or_remove(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self.remove(name),
        }
    }

    /// Removes an attribute if it exists.
    pub(in crate::lease) fn remove(mut self, name: &str) -> Self {
        let name = self.name(name);
        self.removes.push(name);
        self
    }

    /// Adds to a number. An absent number counts as 0.
    pub(in crate::lease) fn add(mut self, name: &str, value: AttributeValue) -> Self {
        let (name, value) = (self.name(name), self.value(value));
        self.adds.push(format!("{name} {value}"));
        self
    }

    /// Requires that the attribute has this value. False if it is absent.
    pub(in crate::lease) fn when(mut self, name: &str, value: AttributeValue) -> Self {
        let (name, value) = (self.name(name), self.value(value));
        self.conditions.push(format!("{name} = {value}"));
        self
    }

    /// Requires that the attribute has this value, or is absent if there is no value.
    pub(in crate::lease) fn when_same(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.when(name, value),
            None => self.when_absent(name),
        }
    }

    /// Requires that the attribute has another value. False if it is absent.
    pub(in crate::lease) fn when_other(mut self, name: &str, value: AttributeValue) -> Self {
        let (name, value) = (self.name(name), self.value(value));
        self.conditions.push(format!("attribute_exists({name}) AND {name} <> {value}"));
        self
    }

    /// Requires that the attribute has this value or is absent.
    pub(in crate::lease) fn when_absent_or(mut self, name: &str, value: AttributeValue) -> Self {
        let (name, value) = (self.name(name), self.value(value));
        self.conditions.push(format!("(attribute_not_exists({name}) OR {name} = {value})"));
        self
    }

    /// Requires that the attribute is absent.
    pub(in crate::lease) fn when_absent(mut self, name: &str) -> Self {
        let name = self.name(name);
        self.conditions.push(format!("attribute_not_exists({name})"));
        self
    }

    /// Requires that the attribute exists.
    pub(in crate::lease) fn when_present(mut self, name: &str) -> Self {
        let name = self.name(name);
        self.conditions.push(format!("attribute_exists({name})"));
        self
    }

    fn name(&mut self, name: &str) -> String {
        let placeholder = format!("#{name}");
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// Returns the update expression, or `None` if nothing changes.
    pub(in crate::lease) fn update_text(&self) -> Option<String> {
        let clauses = [("SET", &self.sets), ("REMOVE", &self.removes), ("ADD", &self.adds)];
        let clauses = clauses.iter().filter(|(_, parts)| !parts.is_empty());
        let clauses: Vec<_> =
            clauses.map(|(verb, parts)| format!("{verb} {}", parts.join(", "))).collect();
        (!clauses.is_empty()).then(|| clauses.join(" "))
    }

    /// Returns the condition expression, or `None` if there is none.
    pub(in crate::lease) fn condition_text(&self) -> Option<String> {
        (!self.conditions.is_empty()).then(|| self.conditions.join(" AND "))
    }

    /// Returns the attribute names behind the placeholders. The service rejects an empty map.
    pub(in crate::lease) fn names(&self) -> Option<HashMap<String, String>> {
        (!self.names.is_empty()).then(|| self.names.clone())
    }

    /// Returns the values behind the placeholders. The service rejects an empty map.
    pub(in crate::lease) fn values(&self) -> Option<HashMap<String, AttributeValue>> {
        (!self.values.is_empty()).then(|| self.values.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::stores::dynamodb::item::{number, text};

    #[test]
    fn clauses_and_conditions_read_as_dynamodb_wants_them() {
        let expression = Expression::default()
            .when("leaseCounter", number(3))
            .when_absent_or("leaseOwner", text("me"))
            .set("leaseCounter", number(4))
            .set("leaseOwner", text("me"))
            .remove("checkpointOwner")
            .add("switches", number(1));
        assert_eq!(
            expression.condition_text().unwrap(),
            "#leaseCounter = :v0 AND (attribute_not_exists(#leaseOwner) OR #leaseOwner = :v1)"
        );
        assert_eq!(
            expression.update_text().unwrap(),
            "SET #leaseCounter = :v2, #leaseOwner = :v3 REMOVE #checkpointOwner ADD #switches :v4"
        );
        assert_eq!(expression.values().unwrap().len(), 5);
        let empty = Expression::default();
        assert_eq!((empty.update_text(), empty.condition_text()), (None, None));
        assert_eq!((empty.names(), empty.values()), (None, None));
    }
}
